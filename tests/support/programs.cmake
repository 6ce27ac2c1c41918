# muster_test_programs(BINARY NAMES...): programs that tests start, each of the one source NAME.cc. A program with
# LibTorch takes seven seconds to compile however short it is. So a unity build makes one binary of them, and hard links
# to it have their names.
function(muster_test_programs binary)
  set(folder ${PROJECT_BINARY_DIR}/tests)
  if(NOT MUSTER_UNITY)
    foreach(name IN LISTS ARGN)
      add_executable(${name} ${name}.cc)
      muster_test_program(${name})
    endforeach()
    return()
  endif()

  set(functions)
  set(cases)
  set(links)
  foreach(name IN LISTS ARGN)
    string(APPEND functions "#define main main_of_${name}
#include \"${CMAKE_CURRENT_SOURCE_DIR}/${name}.cc\"
#undef main\n")
    string(APPEND cases "  if (name == \"${name}\")\n    return main_of_${name}(argc, argv);\n")
    list(APPEND links COMMAND ${CMAKE_COMMAND} -E create_hardlink ${folder}/${binary} ${folder}/${name})
    add_executable(${name} IMPORTED GLOBAL)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${folder}/${name})
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${binary}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Made by tests/support/programs.cmake.
@functions@
#include <filesystem>

int main(int argc, char** argv) {
  const std::string name = std::filesystem::path(argv[0]).filename().string();
@cases@  std::fprintf(stderr, \"${binary}: expected the name of a test program, got '%s'\\n\", name.c_str());
  return 2;
}
" @ONLY)
  add_executable(${binary} ${source})
  muster_test_program(${binary})
  add_custom_command(TARGET ${binary} POST_BUILD ${links} VERBATIM)
endfunction()

# What a program that tests start is compiled with, and where it lies.
function(muster_test_program name)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE muster GTest::gmock)
  target_precompile_headers(${name} REUSE_FROM muster_test_pch)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()
