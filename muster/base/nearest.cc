// How it works: the distance to each name is the number of slips of the hand between them; the
// search for it ends as soon as it is further than the best so far.
#include "muster/base/nearest.h"

#include <algorithm>
#include <utility>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Whether the last two letters of one text are the other's in the opposite order.
bool ends_swapped(std::string_view a, std::string_view b) {
  if (a.size() < 2 || b.size() < 2)
    return false;
  return a.back() == b[b.size() - 2] && a[a.size() - 2] == b.back();
}

// The number of letters that are changed, added, left out or swapped with the next one; `limit` + 1
// when it is more than that. Source: the optimal string alignment distance (Damerau, 1964).
size_t distance_within(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size())
    std::swap(a, b);
  if (b.size() - a.size() > limit)
    return limit + 1;
  Indices row = numbers_below(a.size() + 1);
  Indices above = row;
  Indices two_above = row;
  for (size_t i = 1; i <= b.size(); ++i) {
    std::swap(two_above, above);
    above = row;
    row[0] = i;
    for (size_t j = 1; j <= a.size(); ++j) {
      const size_t change = a[j - 1] == b[i - 1] ? 0 : 1;
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + change});
      if (ends_swapped(a.substr(0, j), b.substr(0, i)))
        row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
    if (std::min(std::ranges::min(row), std::ranges::min(above)) > limit)
      return limit + 1;
  }
  return row[a.size()];
}

// The only name that begins as `text` does, but for a last letter; empty when there are more.
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

// A slip of the hand is one letter in three. The first of equally near names counts.
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

// The text is the end of an error's message.
std::string did_you_mean(std::string_view text, const std::vector<std::string_view>& names) {
  const std::string_view nearest = nearest_name(text, names);
  return nearest.empty() ? "" : cat("; did you mean '", printable(nearest), "'?");
}

}  // namespace muster
