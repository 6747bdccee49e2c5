# cmake -DSOURCE=... -DBINARY=... -P architecture_test.cmake
# Configures with an architecture that has no wgmma and looks at what the kernels are built for.
file(REMOVE_RECURSE ${BINARY})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -G Ninja -DCMAKE_CUDA_ARCHITECTURES=90
          -DROWBAND_CUDA=ON -DROWBAND_MPI=OFF -DROWBAND_TESTS=OFF -DROWBAND_EXAMPLES=OFF
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "configuring failed:\n${output}")
endif()
file(STRINGS ${BINARY}/build.ninja code REGEX "generate-code")
if(NOT code MATCHES "arch=compute_90a,code=\\[sm_90a\\]" OR code MATCHES "compute_90,")
  message(FATAL_ERROR "the kernels are not built for sm_90a alone:\n${code}")
endif()
