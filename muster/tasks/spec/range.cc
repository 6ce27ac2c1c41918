// Shells count in the same way: where a number of the range has zeros before it, all of its numbers
// have one width.
#include "muster/tasks/spec/range.h"

#include <algorithm>
#include <cstdint>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/zero_padded.h"
#include "muster/tasks/spec/template.h"

namespace muster {
namespace {

// Whether a number has zeros before it, as "01" and "-01".
bool begins_with_zero(std::string_view number) {
  const std::string_view digits = number.substr(number.starts_with('-') ? 1 : 0);
  return digits.size() > 1 && digits[0] == '0';
}

// How many characters each number of the range has at least.
size_t width_of_range(std::string_view first, std::string_view last) {
  const bool is_padded = begins_with_zero(first) || begins_with_zero(last);
  return is_padded ? std::max(first.size(), last.size()) : 0;
}

}  // namespace

// The difference is reckoned without signs, since the ends may be those of int64_t.
std::optional<Strings> range_values(std::string_view text) {
  const size_t dots = text.find("..");
  if (dots == npos)
    return std::nullopt;
  const std::string_view first_text = text.substr(0, dots);
  const std::string_view last_text = text.substr(dots + 2);
  const auto first = parse_int(first_text);
  const auto last = parse_int(last_text);
  if (!first || !last)
    return std::nullopt;
  if (*last < *first)
    throw invalid_argument("expected a range that counts up, got ", text);
  const uint64_t difference = static_cast<uint64_t>(*last) - static_cast<uint64_t>(*first);
  if (difference >= kMaxTasks)
    throw invalid_argument("expected at most ", kMaxTasks, " values, got ", text);
  const size_t width = width_of_range(first_text, last_text);
  return mapped_indices(difference + 1, [&](uint64_t place) {
    return zero_padded(cat(*first + static_cast<int64_t>(place)), width);
  });
}

}  // namespace muster
