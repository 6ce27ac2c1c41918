# LibTorch's headers, parsed once for the library and all programs that use them. All of these are compiled with -fPIC:
# what was parsed with one kind of position-independent code can only be used with the same kind.
add_library(muster_torch_headers STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/torch_headers.cc)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # The empty source would take seven seconds if it saw the headers.
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/torch_headers.cc PROPERTIES COMPILE_OPTIONS -fpreprocessed)
endif()
target_link_libraries(muster_torch_headers PRIVATE LibTorch::torch)
target_include_directories(muster_torch_headers PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(muster_torch_headers PRIVATE $<$<CONFIG:Release>:-O${MUSTER_OPTIMIZE}>)
target_precompile_headers(muster_torch_headers PRIVATE <torch/torch.h>)

# muster_torch_program(TARGET...): each program or module is compiled with these headers.
function(muster_torch_program)
  foreach(program IN LISTS ARGN)
    target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O${MUSTER_OPTIMIZE}> -fPIC)
    if(CMAKE_BUILD_TYPE STREQUAL Release)
      target_compile_options(${program} PRIVATE ${MUSTER_FORTIFY})
    endif()
    set_property(TARGET ${program} PROPERTY POSITION_INDEPENDENT_CODE)
    target_precompile_headers(${program} REUSE_FROM muster_torch_headers)
  endforeach()
endfunction()
