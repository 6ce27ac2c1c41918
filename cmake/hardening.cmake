# Of all that is built without sanitizers, which have checks of their own: stacks that notice when they are written over,
# calls of the C library that know how long their buffers are, and tables of addresses that nobody can write to once the
# program runs, at addresses that nobody knows. tests/install/hardening_test.py looks whether it is so.
if(MUSTER_SANITIZE)
  return()
endif()
add_compile_options(-fstack-protector-strong)
# Needs the optimizer, and may have another value by the compiler's default.
add_compile_options("$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
# The same, for a target of a folder that does without.
set(MUSTER_FORTIFY "SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2")
add_link_options(LINKER:-z,relro LINKER:-z,now)
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)
