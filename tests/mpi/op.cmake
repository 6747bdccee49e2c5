# The op and the layer between processes.
add_executable(mpi_op_test op_test.cc)
target_link_libraries(mpi_op_test PRIVATE rowband rowband_flags GTest::gtest_main GTest::gmock fmt::fmt)
foreach(ranks 2 4)
  add_test(NAME mpi_op_test_${ranks}_ranks
           COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:mpi_op_test>)
  set_tests_properties(mpi_op_test_${ranks}_ranks PROPERTIES
    TIMEOUT 300 PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
endforeach()

add_executable(mpi_op_scenario op_scenario.cc)
target_link_libraries(mpi_op_scenario PRIVATE rowband rowband_flags GTest::gtest fmt::fmt)
foreach(case D06_killed_in_call L01_killed_in_calls O01_small_shm)
  add_test(NAME mpi_op_scenario_${case}
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/op_scenarios_test.sh ${case} ${MPIEXEC_EXECUTABLE}
                   $<TARGET_FILE:mpi_op_scenario>)
  set_tests_properties(mpi_op_scenario_${case} PROPERTIES
    TIMEOUT 300 PROCESSORS 2 SKIP_RETURN_CODE 77 ENVIRONMENT "${mpi_environment}")
endforeach()
