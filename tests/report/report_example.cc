// Writes run folders for report_test.py and page_test.py to make pages of.
//
//   report_example FOLDER [fails]
#include <string_view>

#include "tests/report/run_folder_example.h"

int main(int argc, char** argv) {
  if (argc < 2)
    return 2;
  muster::write_example_run(argv[1], {.fails = argc > 2 && std::string_view(argv[2]) == "fails"});
  return 0;
}
