# Checks of this room that are no GoogleTest programs: Python's ml_dtypes as an independent witness,
# and the refusal of fast-math.

# Bit for bit against ml_dtypes and numpy.
add_executable(dump_numerics dump_numerics.cc)
target_link_libraries(dump_numerics PRIVATE rowband rowband_flags fmt::fmt CLI11::CLI11)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import ml_dtypes, numpy, pytest"
                  RESULT_VARIABLE numerics_python_result ERROR_VARIABLE numerics_python_error)
else()
  set(numerics_python_result 1)
  set(numerics_python_error "no Python 3 interpreter")
endif()
if(numerics_python_result EQUAL 0)
  add_test(NAME numerics_ml_dtypes_test
           COMMAND ${Python3_EXECUTABLE} -m pytest -q -p no:cacheprovider
                   ${CMAKE_CURRENT_SOURCE_DIR}/numerics_ml_dtypes_test.py)
  set_tests_properties(numerics_ml_dtypes_test PROPERTIES TIMEOUT 300 ENVIRONMENT
    "ROWBAND_DUMP_NUMERICS=$<TARGET_FILE:dump_numerics>;PYTHONDONTWRITEBYTECODE=1")
else()
  string(STRIP "${numerics_python_error}" numerics_python_error)
  string(REGEX REPLACE ".*\n" "" numerics_python_error "${numerics_python_error}")  # no traceback
  message(STATUS "numerics_ml_dtypes_test is left out: ${numerics_python_error}. It needs the Python "
                 "packages of tests/python_interop/requirements.txt; -DPython3_EXECUTABLE=... "
                 "names an interpreter that has them.")
endif()

# Q13: every source whose bits depend on IEEE arithmetic refuses to be compiled without it, and the
# configuration refuses flags that would ask for that.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  get_target_property(numerics_includes fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM numerics_includes PREPEND -I)
  set(numerics_compile ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -O3
                       -I${PROJECT_SOURCE_DIR} ${numerics_includes})
  foreach(source quantize.cc reference.cc types.cc)
    set(numerics_source ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    add_test(NAME numerics.Q13_StrictMathCompiles/${source}
             COMMAND ${numerics_compile} ${numerics_source})
    foreach(flag -ffast-math -Ofast -ffinite-math-only)
      set(numerics_test numerics.Q13_FastMathIsRefused/${source}/${flag})
      add_test(NAME ${numerics_test} COMMAND ${numerics_compile} ${flag} ${numerics_source})
      set_tests_properties(${numerics_test} PROPERTIES
                           PASS_REGULAR_EXPRESSION "error: .*rowband needs IEEE arithmetic")
    endforeach()
  endforeach()
  add_test(NAME numerics.Q13_FastMathIsRefused/configure
           COMMAND ${CMAKE_COMMAND} -S ${PROJECT_SOURCE_DIR}
                   -B ${CMAKE_CURRENT_BINARY_DIR}/fast_math_refused -G ${CMAKE_GENERATOR}
                   -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} "-DCMAKE_CXX_FLAGS=-O3 -ffast-math")
  set_tests_properties(numerics.Q13_FastMathIsRefused/configure PROPERTIES
                       TIMEOUT 300 PASS_REGULAR_EXPRESSION "CMAKE_CXX_FLAGS holds '-ffast-math'")
endif()
