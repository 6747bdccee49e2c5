# Everything that is found on the system, in one place. The README says why each is there.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(hwy REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)

# rowband_optional(VARIABLE PACKAGE TARGET): AUTO takes the package when it is there, ON insists.
function(rowband_optional switch package target)
  set(found FALSE)
  if(NOT ${switch} STREQUAL "OFF")
    if(${switch} STREQUAL "ON")
      find_package(${package} REQUIRED ${ARGN})
    else()
      find_package(${package} QUIET ${ARGN})
    endif()
    if(TARGET ${target})
      set(found TRUE)
    endif()
  endif()
  set(${switch}_FOUND ${found} PARENT_SCOPE)
  message(STATUS "${switch}=${${switch}}: ${package} used: ${found}")
endfunction()

rowband_optional(ROWBAND_MPI MPI MPI::MPI_CXX COMPONENTS CXX)
if(ROWBAND_TESTS)
  find_package(GTest REQUIRED)
endif()

# The cuda engine: nvcc of CUDA 12.5 or newer. The library needs no driver to start.
set(ROWBAND_CUDA_FOUND FALSE)
if(NOT ROWBAND_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Before the compiler is tried: its default may be an architecture that it no longer knows.
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.5)
      set(ROWBAND_CUDA_FOUND TRUE)
    elseif(ROWBAND_CUDA STREQUAL "ON")
      message(FATAL_ERROR "ROWBAND_CUDA=ON: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old, "
                          "12.5 or newer is needed; ROWBAND_CUDA=OFF builds without the cuda engine")
    endif()
  elseif(ROWBAND_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ROWBAND_CUDA=ON, but there is no nvcc (12.5 or newer is needed); "
                        "ROWBAND_CUDA=OFF builds without the cuda engine")
  endif()
endif()
message(STATUS "ROWBAND_CUDA=${ROWBAND_CUDA}: nvcc used: ${ROWBAND_CUDA_FOUND}")

# NCCL's headers, 2.28 or newer: windows between processes and the all-reduce of the base path. The
# library itself is loaded when it is first used (comm/nccl_library.h), so nothing links it.
set(ROWBAND_NCCL_FOUND FALSE)
if(ROWBAND_CUDA_FOUND)
  find_path(ROWBAND_NCCL_INCLUDE nccl_device.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(ROWBAND_NCCL_LIBRARY NAMES nccl libnccl.so.2
               HINTS ${CUDAToolkit_LIBRARY_ROOT}/lib ${CUDAToolkit_LIBRARY_DIR})
  mark_as_advanced(ROWBAND_NCCL_INCLUDE ROWBAND_NCCL_LIBRARY)
  if(ROWBAND_NCCL_INCLUDE)
    set(ROWBAND_NCCL_FOUND TRUE)
  endif()
  # Where the library is looked for when the loader does not find it.
  set(ROWBAND_NCCL_AT_BUILD libnccl.so.2)
  if(ROWBAND_NCCL_LIBRARY)
    get_filename_component(ROWBAND_NCCL_FOLDER ${ROWBAND_NCCL_LIBRARY} DIRECTORY)
    set(ROWBAND_NCCL_AT_BUILD ${ROWBAND_NCCL_FOLDER}/libnccl.so.2)
  endif()
endif()
message(STATUS "NCCL 2.28 or newer used: ${ROWBAND_NCCL_FOUND}")
