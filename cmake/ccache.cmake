# ccache keeps what was compiled, so that another branch or a removed build folder costs nothing. It is told that a
# precompiled header may be trusted, which g++ must then name in what it has preprocessed.
find_program(MUSTER_CCACHE_PROGRAM ccache)
if(MUSTER_CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${MUSTER_CCACHE_PROGRAM})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
else()
  message(STATUS "ccache is not installed: everything is compiled anew (scripts/setup.sh dev installs it)")
endif()
