# muster_precompile(TARGET...): LibTorch's and muster's headers are parsed once, for all of these targets and for each
# rebuild, instead of once a source and a build. They are most of the time that a small program takes to compile.
#
#   add_executable(train train.cc)
#   target_link_libraries(train PRIVATE muster::muster)
#   muster_precompile(train)
#
# Targets with the same flags share one precompiled header, also over folders. One with flags of its own gets its own:
# what was parsed with one set of flags can only be used with the same. A source sees <torch/torch.h> and
# <muster/muster.h> before its first line; keep its includes, so that it compiles without this too.
function(muster_precompile)
  if(NOT ARGN)
    message(FATAL_ERROR "muster_precompile: expected one target or more, got none; name those of add_executable")
  endif()
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      message(FATAL_ERROR
        "muster_precompile: expected a target, got '${target}'; call it after add_executable or add_library")
    endif()
    # At the end of the folder, so that options count which are set after this call.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL muster_precompile_now [[${target}]])")
  endforeach()
endfunction()

function(muster_precompile_now target)
  set(same CXX_STANDARD CXX_STANDARD_REQUIRED CXX_EXTENSIONS CXX_VISIBILITY_PRESET VISIBILITY_INLINES_HIDDEN COMPILE_FEATURES
    COMPILE_OPTIONS INTERPROCEDURAL_OPTIMIZATION)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND same COMPILE_DEFINITIONS)  # g++ alone allows macros that the headers do not use
  endif()
  set(flags "${CMAKE_CXX_COMPILER} ${CMAKE_BUILD_TYPE} ${CMAKE_CXX_FLAGS}")
  foreach(property IN LISTS same)
    get_target_property(value ${target} ${property})
    string(APPEND flags " ${property}=${value}")
  endforeach()

  # CMake compiles position-independent code with -fPIE for programs and with -fPIC for libraries.
  get_target_property(type ${target} TYPE)
  get_target_property(is_independent ${target} POSITION_INDEPENDENT_CODE)
  set(is_program FALSE)
  if(is_independent AND type STREQUAL EXECUTABLE)
    set(is_program TRUE)
  endif()
  string(APPEND flags " ${is_independent} ${is_program}")

  string(SHA1 key "${flags}")
  string(SUBSTRING ${key} 0 8 key)
  set(headers muster_headers_${key})
  if(NOT TARGET ${headers})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${headers}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "// Its precompiled header is all that counts.\n")
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${source})
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # The source would take seven seconds if it saw the headers.
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -fpreprocessed)
    endif()
    foreach(property IN LISTS same)
      get_target_property(value ${target} ${property})
      if(NOT value STREQUAL "value-NOTFOUND")
        set_property(TARGET ${headers} PROPERTY ${property} ${value})
      endif()
    endforeach()
    if(is_program)
      set_property(TARGET ${headers} PROPERTY POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${headers} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
    elseif(is_independent STREQUAL "is_independent-NOTFOUND")
      set_property(TARGET ${headers} PROPERTY POSITION_INDEPENDENT_CODE)
    else()
      set_property(TARGET ${headers} PROPERTY POSITION_INDEPENDENT_CODE ${is_independent})
    endif()
    target_link_libraries(${headers} PRIVATE muster::muster)
    target_precompile_headers(${headers} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:<torch/torch.h$<ANGLE-R>>" "$<$<COMPILE_LANGUAGE:CXX>:<muster/muster.h$<ANGLE-R>>")
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()
