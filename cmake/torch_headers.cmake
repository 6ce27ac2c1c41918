# LibTorch's headers, parsed once for all programs that use them: a program then compiles in half the time.
add_library(muster_torch_headers STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/torch_headers.cc)
target_link_libraries(muster_torch_headers PRIVATE muster)
target_compile_options(muster_torch_headers PRIVATE $<$<CONFIG:Release>:-O${MUSTER_OPTIMIZE}>)
target_precompile_headers(muster_torch_headers PRIVATE <torch/torch.h>)
# The compiler's default, as in the programs: those that are compiled with -fPIE cannot use what was parsed with -fPIC.
set_property(TARGET muster_torch_headers PROPERTY POSITION_INDEPENDENT_CODE)

# muster_torch_program(PROGRAM...): each is compiled with these headers.
function(muster_torch_program)
  foreach(program IN LISTS ARGN)
    target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O${MUSTER_OPTIMIZE}>)
    set_property(TARGET ${program} PROPERTY POSITION_INDEPENDENT_CODE)
    target_precompile_headers(${program} REUSE_FROM muster_torch_headers)
  endforeach()
endfunction()
