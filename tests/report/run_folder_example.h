// The folder of a job with eight ranks on two hosts that failed twice: curves with gaps, activity
// files, and names that would be markup. What it holds is the same each time.
#pragma once

#include <string>

namespace muster {

struct ExampleFacts {
  int num_steps = 5000;
  double began = 1'700'000'000;  // seconds since 1970
  bool fails = false;            // at the end too, with failure.json
};

inline constexpr const char* kMarkup = "<script>document.title = 'broken'</script>";

void write_example_run(const std::string& folder, const ExampleFacts& facts = {});

}  // namespace muster
