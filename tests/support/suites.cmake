# For ctest, which includes it: the cases of a GoogleTest program, those of a suite as one test. A program with LibTorch
# takes half a second to start, as long as most of its cases.

set(muster_suites_script "${CMAKE_CURRENT_LIST_FILE}")

# The list of suites is made anew when the program is, or this file.
function(muster_list_suites program list)
  if(NOT "${program}" IS_NEWER_THAN "${list}" AND NOT "${muster_suites_script}" IS_NEWER_THAN "${list}")
    return()
  endif()
  execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE cases RESULT_VARIABLE failed TIMEOUT 60)
  if(failed)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${failed}")
  endif()
  string(REGEX MATCHALL "(^|\n)[^ \n]+\\.[ \n]" suites "${cases}")
  if(NOT suites)
    message(FATAL_ERROR "${program} --gtest_list_tests: expected a suite, got none")
  endif()
  list(TRANSFORM suites REPLACE "[ \n]" "")
  list(JOIN suites "\n" suites)
  file(WRITE "${list}" "${suites}\n")
endfunction()

# muster_add_suites(NAME PROGRAM PROPERTY VALUE...): a suite all of whose cases were skipped is skipped. One that failed
# has "[  FAILED  ]" after the line that says so.
function(muster_add_suites name program)
  if(NOT EXISTS "${program}")
    add_test("${name}_NOT_BUILT" "${name}_NOT_BUILT")
    return()
  endif()
  muster_list_suites("${program}" "${program}.suites")
  file(STRINGS "${program}.suites" suites)
  foreach(suite IN LISTS suites)
    string(REGEX REPLACE "\\.$" "" test "${suite}")
    add_test("${test}" "${program}" "--gtest_filter=${suite}*")
    set_tests_properties("${test}" PROPERTIES SKIP_REGULAR_EXPRESSION
      "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]+\n)+$" ${ARGN})
  endforeach()
endfunction()
