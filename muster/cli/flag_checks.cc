#include "muster/cli/flag_checks.h"

#include "muster/base/strings.h"

namespace muster {

FlagCheck not_empty(const std::string& expected) {
  return [expected](const std::string& text) {
    return text.empty() ? cat("expected ", expected, ", got ''; give it or leave the flag out") : "";
  };
}

FlagCheck whole_number_from(int64_t least, int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    const auto number = parse_int(text);
    if (number && *number >= least && *number <= most) return "";
    const bool too_large = number && *number > most;
    return cat("expected a whole number of at ", too_large ? "most " : "least ", too_large ? most : least,
               ", got '", printable(text), "'");
  };
}

}  // namespace muster
