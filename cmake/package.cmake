# cpack: two Debian packages (scripts/packages.sh makes them, and the wheel and the tarball).
#
#   muster           the program, its manual pages, completions and docs; depends on the C library alone
#   libmuster-dev    the C++ library, headers, find_package(muster), examples; LibTorch is the user's (pip install torch)
#
# Only from a build whose installed tree names no folder of this machine: one that would copy its LibTorch.
if(MUSTER_LIBTORCH AND NOT muster_copies_libtorch)
  file(REMOVE ${PROJECT_BINARY_DIR}/CPackConfig.cmake ${PROJECT_BINARY_DIR}/CPackSourceConfig.cmake)  # of another configuration
  return()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME muster)
set(CPACK_PACKAGE_VENDOR "the authors of muster")
set(CPACK_PACKAGE_CONTACT "the authors of muster <muster@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
  "finds the GPUs of a machine or of many, and runs ranks and tasks on them\nStarts the ranks of C++ and Python programs, gives each its GPU and says why,\n guards them, and runs many tasks on few GPUs.")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME muster)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
# Loaded at run time, where they are there: the first for what hwloc knows beyond /sys, the second for etcd.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "libhwloc15, libcurl4 | libcurl4t64")

if(MUSTER_LIBTORCH)
  list(APPEND CPACK_COMPONENTS_ALL development)
  set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "C++ library that trains LibTorch models on many GPUs\nProcess groups, data parallelism, sharding, pipelines, data loading and\n checkpoints for LibTorch ${LibTorch_VERSION}, which `python3 -m pip install torch==${LibTorch_VERSION}` brings.")
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libmuster-dev)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
  # By hand: dpkg-shlibdeps wants a package for each library, and LibTorch has none. The headers' packages bring the libraries.
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "muster (= ${PROJECT_VERSION}), g++, cmake, libjpeg-dev, libpng-dev, zlib1g-dev, libssl-dev, libpugixml-dev, libarchive-dev")
endif()
include(CPack)
