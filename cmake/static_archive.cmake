# muster_static_archive(VARIABLE TARGET PKG_CONFIG_MODULE INCLUDE EXPRESSION)
#
# Sets VARIABLE to the archives that a program links to have the library of the imported TARGET inside. How a distribution
# built a library decides what its archive needs (Debian 13's libcrypto: zlib and zstd). So the archive is tried alone, then
# with the archives of what pkg-config names for static linking. EXPRESSION, which INCLUDE declares, is what is tried.
# Where neither links, VARIABLE is TARGET itself, the shared library, and a line says so.
include(CheckCXXSourceCompiles)
find_package(PkgConfig QUIET)

# The archives of what pkg-config names, but for the C library's own, which stay shared.
function(_muster_static_closure variable module)
  set(archives)
  if(PkgConfig_FOUND)
    pkg_check_modules(pc QUIET ${module})
    foreach(name IN LISTS pc_STATIC_LIBRARIES)
      find_library(archive lib${name}.a HINTS ${pc_STATIC_LIBRARY_DIRS} NO_CACHE)
      if(archive AND NOT name MATCHES "^(c|m|dl|pthread|rt)$")
        list(APPEND archives ${archive})
      endif()
      unset(archive)
    endforeach()
  endif()
  set(${variable} ${archives} PARENT_SCOPE)
endfunction()

function(muster_static_archive variable target module include expression)
  string(REGEX REPLACE "^lib" "" name ${module})
  find_library(alone lib${name}.a NO_CACHE)
  _muster_static_closure(closure ${module})
  set(CMAKE_REQUIRED_QUIET TRUE)
  foreach(tried IN ITEMS alone closure)
    set(CMAKE_REQUIRED_LIBRARIES ${${tried}} Threads::Threads ${CMAKE_DL_LIBS})
    if(${tried})
      check_cxx_source_compiles("#include <${include}>\nint main() { return (${expression}) ? 0 : 1; }"
        ${variable}_links_${tried})
    endif()
    if(${variable}_links_${tried})
      set(${variable} ${${tried}} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(STATUS "lib${name}: no archive of it links; the launcher takes the shared library, and starts more slowly")
  set(${variable} ${target} PARENT_SCOPE)
endfunction()
