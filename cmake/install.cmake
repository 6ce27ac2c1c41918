# cmake --install: the program, and for C++ users the libraries, the headers and find_package(muster). The components are
# `program`, `development`, `bench` and `libtorch`; the packages (package.cmake) are made of the first two.
#
#   bin/muster
#   lib/libmuster.so.0                           the C interface, which is without LibTorch; include/muster/c_api.h
#   libexec/muster/muster-bench                  what `muster bench` executes, and python_ddp.py for its peer
#   lib/libmuster.so, lib/libmuster_cuda.so,     beside each other: the first loads the others by their place
#   lib/libmuster_mpi_*.so
#   lib/muster/libtorch/                         LibTorch, where it is the one that setup.sh put into the checkout
#   include/muster/...                           muster.h and the others that programs can reach (public_headers.cmake)
#   lib/cmake/muster/                            musterConfig.cmake, and FindLibTorch.cmake and musterPrecompile.cmake,
#                                                which it uses
#   share/man/man1/                              a page for each command
#   share/bash-completion, share/zsh, share/fish completion, where these shells look
#   share/doc/muster/                            README.md, docs/, and examples/ with the data/ that they read
#
# Nothing of it needs the checkout, and it may be moved as a whole. A LibTorch that lies elsewhere (TORCH) stays where it
# is, and is found there; MUSTER_INSTALL_LIBTORCH (AUTO, ON, OFF) decides otherwise.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

# What `make install` builds.
add_custom_target(muster_installed DEPENDS muster_cli muster_c)
set(muster_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
install(TARGETS muster_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(TARGETS muster_c LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/muster/c_api.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/muster)

# From the program's own flags.
set(muster_words ${PROJECT_BINARY_DIR}/words)
add_custom_command(OUTPUT ${muster_words}/man1/muster.1
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${muster_words}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${muster_words}/man1
  COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:muster_cli> completion bash > ${muster_words}/muster
  COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:muster_cli> completion zsh > ${muster_words}/_muster
  COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:muster_cli> completion fish > ${muster_words}/muster.fish
  COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:muster_cli> manual --all ${muster_words}/man1
  DEPENDS muster_cli)
add_custom_target(muster_words ALL DEPENDS ${muster_words}/man1/muster.1)
add_dependencies(muster_installed muster_words)
install(DIRECTORY ${muster_words}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
install(FILES ${muster_words}/muster DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${muster_words}/_muster DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT program)
install(FILES ${muster_words}/muster.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

if(MUSTER_LIBTORCH)
  target_compile_features(muster INTERFACE cxx_std_20)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples ${PROJECT_SOURCE_DIR}/data DESTINATION ${CMAKE_INSTALL_DOCDIR})

  # The folder itself, not a link to it that may lead elsewhere later.
  file(REAL_PATH "${LibTorch_ROOT}" muster_torch_root)
  set(MUSTER_INSTALL_LIBTORCH AUTO CACHE STRING "Install a copy of LibTorch: AUTO (where it lies in the checkout), ON or OFF")
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${LibTorch_ROOT}" NORMALIZE muster_copies_libtorch)
  if(NOT MUSTER_INSTALL_LIBTORCH STREQUAL AUTO)
    set(muster_copies_libtorch ${MUSTER_INSTALL_LIBTORCH})
  endif()
  if(muster_copies_libtorch)
    # As in a wheel: LibTorch finds CUDA's libraries beside its own folder.
    set(muster_libtorch_dir ${CMAKE_INSTALL_LIBDIR}/muster/libtorch)
    install(DIRECTORY ${muster_torch_root}/lib ${muster_torch_root}/include COMPONENT libtorch
      DESTINATION ${muster_libtorch_dir}/torch USE_SOURCE_PERMISSIONS MESSAGE_NEVER)
    if(EXISTS ${muster_torch_root}/../nvidia)
      install(DIRECTORY ${muster_torch_root}/../nvidia COMPONENT libtorch DESTINATION ${muster_libtorch_dir}
        USE_SOURCE_PERMISSIONS MESSAGE_NEVER)
    endif()
    set(muster_installed_torch "\${PACKAGE_PREFIX_DIR}/${muster_libtorch_dir}/torch")  # of musterConfig.cmake
    set(muster_install_rpath "$ORIGIN" "$ORIGIN/muster/libtorch/torch/lib")
    set(muster_bench_torch_rpath "$ORIGIN/../../${muster_libtorch_dir}/torch/lib")
  else()
    set(muster_installed_torch "${muster_torch_root}")
    set(muster_install_rpath "$ORIGIN" "${muster_torch_root}/lib")
    set(muster_bench_torch_rpath "${muster_torch_root}/lib")
  endif()

  install(TARGETS muster EXPORT musterTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(muster PROPERTIES INSTALL_RPATH "${muster_install_rpath}")
  if(TARGET muster_cuda)
    add_dependencies(muster_installed muster_cuda)
    install(TARGETS muster_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(muster_cuda PROPERTIES INSTALL_RPATH "${muster_install_rpath}")
  endif()

  get_property(muster_mpi_libraries GLOBAL PROPERTY MUSTER_MPI_LIBRARIES)
  foreach(library IN LISTS muster_mpi_libraries)
    install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${library} PROPERTIES INSTALL_RPATH "${muster_install_rpath}")
  endforeach()

  add_dependencies(muster_installed muster muster_bench ${muster_mpi_libraries})
  install(TARGETS muster_bench RUNTIME DESTINATION libexec/muster COMPONENT bench)
  install(FILES ${PROJECT_SOURCE_DIR}/muster/bench/python_ddp.py DESTINATION libexec/muster COMPONENT bench)
  set_target_properties(muster_bench PROPERTIES
    INSTALL_RPATH "$ORIGIN/../../${CMAKE_INSTALL_LIBDIR};${muster_bench_torch_rpath}")

  # muster_control is inside libmuster.so: its archive is not installed.
  include(${CMAKE_CURRENT_LIST_DIR}/public_headers.cmake)
  muster_public_headers(muster_headers)
  foreach(header IN LISTS muster_headers)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  endforeach()

  install(EXPORT musterTargets NAMESPACE muster:: DESTINATION ${muster_package_dir})
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake ${PROJECT_SOURCE_DIR}/cmake/musterPrecompile.cmake
    DESTINATION ${muster_package_dir})
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/musterConfig.cmake.in
  ${PROJECT_BINARY_DIR}/musterConfig.cmake INSTALL_DESTINATION ${muster_package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/musterConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/musterConfig.cmake ${PROJECT_BINARY_DIR}/musterConfigVersion.cmake
  DESTINATION ${muster_package_dir})

include(${CMAKE_CURRENT_LIST_DIR}/package.cmake)
