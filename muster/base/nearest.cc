#include "muster/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "muster/base/strings.h"

namespace muster {
namespace {

// How many letters are changed, added, left out or swapped with the next one; `limit` + 1 when it
// is more than that. Source: the optimal string alignment distance (Damerau, 1964).
size_t distance_within(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size())
    std::swap(a, b);
  if (b.size() - a.size() > limit)
    return limit + 1;
  std::vector<size_t> row(a.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  std::vector<size_t> above = row;
  std::vector<size_t> two_above = row;
  for (size_t i = 1; i <= b.size(); ++i) {
    std::swap(two_above, above);
    above = row;
    row[0] = i;
    for (size_t j = 1; j <= a.size(); ++j) {
      row[j] =
          std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[j - 1] == b[i - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[j - 1] == b[i - 2] && a[j - 2] == b[i - 1];
      if (swapped)
        row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
    if (std::min(*std::min_element(row.begin(), row.end()),
                 *std::min_element(above.begin(), above.end())) > limit)
      return limit + 1;
  }
  return row[a.size()];
}

// The only name that begins as `text` does, but for a last letter.
std::string_view same_beginning(std::string_view text, const std::vector<std::string_view>& names) {
  constexpr size_t kLeast = 3;
  if (text.size() < kLeast)
    return {};
  const std::string_view beginning = text.substr(0, std::max(kLeast, text.size() - 1));
  std::string_view found;
  for (const std::string_view name : names) {
    if (!name.starts_with(beginning))
      continue;
    if (!found.empty())
      return {};
    found = name;
  }
  return found;
}

}  // namespace

std::string_view nearest_name(std::string_view text, const std::vector<std::string_view>& names) {
  std::string_view nearest;
  size_t limit = std::max<size_t>(1, (text.size() + 1) / 3);
  for (const std::string_view name : names) {
    const size_t distance = distance_within(text, name, limit);
    if (distance > limit || (distance == limit && !nearest.empty()))
      continue;
    nearest = name;
    limit = distance;
  }
  return nearest.empty() ? same_beginning(text, names) : nearest;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string_view>& names) {
  const std::string_view nearest = nearest_name(text, names);
  return nearest.empty() ? "" : cat("; did you mean '", printable(nearest), "'?");
}

}  // namespace muster
