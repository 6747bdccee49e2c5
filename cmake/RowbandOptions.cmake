# Every switch of the build, and the compiler settings that the sources count on.
include(CMakeDependentOption)
include(CMakePushCheckState)

option(ROWBAND_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ROWBAND_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(ROWBAND_INSTALL "Install rules, for cmake --install" ${PROJECT_IS_TOP_LEVEL})
option(ROWBAND_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(ROWBAND_WERROR "Warnings of the compiler are errors" OFF)
set(ROWBAND_MPI AUTO CACHE STRING "Ranks as MPI processes: AUTO, ON or OFF")
set(ROWBAND_OPENBLAS AUTO CACHE STRING "OpenBLAS as a peer in the GEMM benchmark: AUTO, ON or OFF")
set(ROWBAND_CUDA AUTO CACHE STRING "The cuda engine: AUTO, ON or OFF")
set(ROWBAND_SANITIZE "" CACHE STRING "Sanitizers for everything: empty, 'address,undefined' or 'thread'")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# NaN checks and the order of additions are part of the results' contract.
string(TOUPPER "${CMAKE_BUILD_TYPE}" rowband_build_type)
foreach(flags CMAKE_CXX_FLAGS CMAKE_CXX_FLAGS_${rowband_build_type} CMAKE_EXE_LINKER_FLAGS)
  if("${${flags}}" MATCHES "-Ofast|-ffast-math|-funsafe-math-optimizations|-ffinite-math-only|-fassociative-math|-freciprocal-math")
    message(FATAL_ERROR "${flags} holds '${CMAKE_MATCH_0}': it compiles NaN checks away and reorders "
                        "sums, so that ranks would no longer agree to the bit. Remove it; -O3 is fine.")
  endif()
endforeach()

add_library(rowband_flags INTERFACE)
target_compile_options(rowband_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                       -Wno-sign-conversion -Wno-psabi -ffp-contract=off
                       $<$<BOOL:${ROWBAND_WERROR}>:-Werror>)
if(ROWBAND_SANITIZE)
  target_compile_options(rowband_flags INTERFACE -fsanitize=${ROWBAND_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(rowband_flags INTERFACE -fsanitize=${ROWBAND_SANITIZE})
endif()
