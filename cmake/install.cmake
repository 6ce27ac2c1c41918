# cmake --install: the program, and for C++ users the libraries, the headers and find_package(muster).
#
#   bin/muster
#   libexec/muster/muster-bench                  what `muster bench` executes, and python_ddp.py for its peer
#   lib/libmuster.so, lib/libmuster_cuda.so,     beside each other: the first loads the others by their place
#   lib/libmuster_mpi_*.so
#   include/muster/...                           every header that a FILE_SET names
#   lib/cmake/muster/                            musterConfig.cmake, and FindLibTorch.cmake, which it uses
include(CMakePackageConfigHelpers)

set(muster_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
install(TARGETS muster_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(MUSTER_LIBTORCH)
  target_compile_features(muster INTERFACE cxx_std_20)
  # The folder itself, not a link to it that may lead elsewhere later.
  file(REAL_PATH "${LibTorch_ROOT}" muster_torch_root)
  set(muster_install_rpath "$ORIGIN" "${muster_torch_root}/lib")

  install(TARGETS muster EXPORT musterTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  set_target_properties(muster PROPERTIES INSTALL_RPATH "${muster_install_rpath}")
  if(TARGET muster_cuda)
    install(TARGETS muster_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(muster_cuda PROPERTIES INSTALL_RPATH "${muster_install_rpath}")
  endif()

  get_property(muster_mpi_libraries GLOBAL PROPERTY MUSTER_MPI_LIBRARIES)
  foreach(library IN LISTS muster_mpi_libraries)
    install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${library} PROPERTIES INSTALL_RPATH "${muster_install_rpath}")
  endforeach()

  install(TARGETS muster_bench RUNTIME DESTINATION libexec/muster)
  install(FILES ${PROJECT_SOURCE_DIR}/muster/bench/python_ddp.py DESTINATION libexec/muster)
  set_target_properties(muster_bench PROPERTIES
    INSTALL_RPATH "$ORIGIN/../../${CMAKE_INSTALL_LIBDIR};${muster_torch_root}/lib")

  # muster_control is inside libmuster.so: its headers are installed, the archive is not.
  get_target_property(muster_control_headers muster_control HEADER_SET)
  foreach(header IN LISTS muster_control_headers)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE relative)
    cmake_path(GET relative PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  endforeach()
  install(FILES ${PROJECT_SOURCE_DIR}/muster/muster.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/muster)

  install(EXPORT musterTargets NAMESPACE muster:: DESTINATION ${muster_package_dir})
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${muster_package_dir})
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/musterConfig.cmake.in
  ${PROJECT_BINARY_DIR}/musterConfig.cmake INSTALL_DESTINATION ${muster_package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/musterConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/musterConfig.cmake ${PROJECT_BINARY_DIR}/musterConfigVersion.cmake
  DESTINATION ${muster_package_dir})
