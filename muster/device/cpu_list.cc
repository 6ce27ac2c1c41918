#include "muster/device/cpu_list.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr int64_t kMaxCpu = 65535;

[[noreturn]] void refuse_list(std::string_view text) {
  throw Error(ErrorCode::invalid_argument,
              cat("CPU list: expected numbers and ranges as in 0-31,64-95, got '",
                  printable(text.substr(0, 100)),
                  "'"));
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  if (trim(text).empty())
    return cpus;
  for (const std::string& piece : split(trim(text), ',')) {
    const size_t dash = piece.find('-');
    const auto first = parse_int(piece.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_int(piece.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMaxCpu)
      refuse_list(text);
    for (int64_t cpu = *first; cpu <= *last; ++cpu)
      cpus.push_back(static_cast<int>(cpu));
    if (cpus.size() > static_cast<size_t>(kMaxCpu) + 1)
      refuse_list(text);  // the same ranges again and again
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string to_cpu_list(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1)
      ++end;
    if (!text.empty())
      text += ',';
    text += cat(cpus[i]);
    if (end - i > 1)
      text += cat('-', cpus[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace muster
