# `cmake --install`: the public headers, the library, the program, and what find_package(rowband)
# and pkg-config need. Everything installed can be moved as a whole.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What a user of the library includes, on its own: nothing here brings fmt, spdlog, nlohmann-json,
# Highway or MPI with it. tests/install compiles each alone.
target_sources(rowband PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
  ${PROJECT_SOURCE_DIR}/rowband/base/deadline.h
  ${PROJECT_SOURCE_DIR}/rowband/base/error.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/callbacks.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/communicator.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/mpi.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/nccl.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/nccl_comm.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/tcp.h
  ${PROJECT_SOURCE_DIR}/rowband/comm/threads.h
  ${PROJECT_SOURCE_DIR}/rowband/engines/engine.h
  ${PROJECT_SOURCE_DIR}/rowband/io/checkpoint.h
  ${PROJECT_SOURCE_DIR}/rowband/io/make_checkpoint.h
  ${PROJECT_SOURCE_DIR}/rowband/io/matrix_file.h
  ${PROJECT_SOURCE_DIR}/rowband/io/safetensors.h
  ${PROJECT_SOURCE_DIR}/rowband/layer/engine_buffer.h
  ${PROJECT_SOURCE_DIR}/rowband/layer/environment.h
  ${PROJECT_SOURCE_DIR}/rowband/layer/layer_memory.h
  ${PROJECT_SOURCE_DIR}/rowband/layer/policy.h
  ${PROJECT_SOURCE_DIR}/rowband/layer/row_parallel_linear.h
  ${PROJECT_SOURCE_DIR}/rowband/numerics/float_environment.h
  ${PROJECT_SOURCE_DIR}/rowband/numerics/operands.h
  ${PROJECT_SOURCE_DIR}/rowband/numerics/quantize.h
  ${PROJECT_SOURCE_DIR}/rowband/numerics/reference.h
  ${PROJECT_SOURCE_DIR}/rowband/numerics/types.h
  ${PROJECT_SOURCE_DIR}/rowband/op/gemm_all_reduce.h
  ${PROJECT_SOURCE_DIR}/rowband/plan/plan.h
  ${PROJECT_SOURCE_DIR}/rowband/plan/tile_order.h
  ${PROJECT_SOURCE_DIR}/rowband/trace/timeline.h
  ${PROJECT_SOURCE_DIR}/rowband/trace/totals.h)

if(ROWBAND_CUDA_FOUND)
  target_sources(rowband PUBLIC FILE_SET HEADERS FILES
                 ${PROJECT_SOURCE_DIR}/rowband/engines/cuda/engine.h)
endif()

set_target_properties(rowband PROPERTIES VERSION ${PROJECT_VERSION}
                                         SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# The program finds a shared library beside itself, wherever the tree is moved to.
file(RELATIVE_PATH rowband_libraries_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set_target_properties(rowband_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${rowband_libraries_from_bin}")

install(TARGETS rowband EXPORT rowbandTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS rowband_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

set(rowband_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rowband)
get_target_property(rowband_library_type rowband TYPE)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rowbandConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/rowbandConfig.cmake
                              INSTALL_DESTINATION ${rowband_package_dir}
                              NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rowbandConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rowbandConfig.cmake ${PROJECT_BINARY_DIR}/rowbandConfigVersion.cmake
        DESTINATION ${rowband_package_dir})
install(EXPORT rowbandTargets NAMESPACE rowband:: DESTINATION ${rowband_package_dir})

# pkg-config links what is private to a static library only when it is told of it as required.
set(rowband_pc_packages "fmt spdlog libhwy hwloc")
set(rowband_pc_libraries "-pthread")
if(ROWBAND_MPI_FOUND)
  get_target_property(rowband_pc_mpi MPI::MPI_CXX INTERFACE_LINK_LIBRARIES)
  list(JOIN rowband_pc_mpi " " rowband_pc_mpi)
  string(APPEND rowband_pc_libraries " ${rowband_pc_mpi}")
endif()
if(ROWBAND_CUDA_FOUND)
  string(APPEND rowband_pc_libraries " ${CUDA_cudart_static_LIBRARY} -ldl -lrt")
endif()
if(rowband_library_type STREQUAL "STATIC_LIBRARY")
  set(rowband_pc_requires "Requires: ${rowband_pc_packages}")
  set(rowband_pc_libs "Libs: -L\${libdir} -lrowband ${rowband_pc_libraries}")
else()
  set(rowband_pc_requires "Requires.private: ${rowband_pc_packages}")
  set(rowband_pc_libs "Libs: -L\${libdir} -lrowband\nLibs.private: ${rowband_pc_libraries}")
endif()
file(RELATIVE_PATH rowband_prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" rowband_prefix_from_pc "${rowband_prefix_from_pc}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/rowband.pc.in ${PROJECT_BINARY_DIR}/rowband.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rowband.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
