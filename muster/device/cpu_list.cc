// A list becomes plain numbers and is sorted before anything looks at it, so order, overlaps and
// repetitions in the text do not matter.
#include "muster/device/cpu_list.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

[[noreturn]] void refuse_list(std::string_view text) {
  throw invalid_argument("CPU list: expected numbers and ranges as in 0-31,64-95, got '",
                         printable(text.substr(0, 100)),
                         "'");
}

void sort_each_once(Ints& cpus) {
  std::ranges::sort(cpus);
  const auto repeated = std::ranges::unique(cpus);
  cpus.erase(repeated.begin(), repeated.end());
}

}  // namespace

Ints parse_cpu_list(std::string_view text) {
  Ints cpus;
  if (trim(text).empty())
    return cpus;
  for (const auto& piece : split(trim(text), ',')) {
    const size_t dash = piece.find('-');
    const auto first = parse_number(piece.substr(0, dash), 0, kMaxNumber);
    if (!first)
      refuse_list(text);
    const auto last =
        dash == npos ? first : parse_number(piece.substr(dash + 1), *first, kMaxNumber);
    if (!last)
      refuse_list(text);
    for (int cpu = *first; cpu <= *last; ++cpu)
      cpus.push_back(cpu);
    // A text that names the same ranges again and again would fill the memory.
    if (std::ssize(cpus) > kMaxNumber + 1)
      refuse_list(text);
  }
  sort_each_once(cpus);
  return cpus;
}

// Runs of neighbouring CPUs become ranges, as the kernel writes them.
std::string to_cpu_list(Ints cpus) {
  sort_each_once(cpus);
  Strings ranges;
  for (size_t i = 0; i < cpus.size();) {
    const int first = cpus[i];
    int last = first;
    while (++i < cpus.size() && cpus[i] == last + 1)
      ++last;
    ranges.push_back(first == last ? cat(first) : cat(first, '-', last));
  }
  return join(ranges, ",");
}

}  // namespace muster
