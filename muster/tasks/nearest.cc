#include "muster/tasks/nearest.h"

#include <algorithm>
#include <numeric>

#include "muster/base/strings.h"

namespace muster {
namespace {

// Levenshtein's distance; `limit` + 1 when it is more than that.
size_t distance_within(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return limit + 1;
  std::vector<size_t> row(a.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= b.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    size_t least = i;
    for (size_t j = 1; j <= a.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[j - 1] == b[i - 1] ? 0 : 1)});
      diagonal = above;
      least = std::min(least, row[j]);
    }
    if (least > limit) return limit + 1;
  }
  return row[a.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view text, const std::vector<std::string_view>& names) {
  std::string_view nearest;
  size_t limit = std::max<size_t>(1, (text.size() + 1) / 3);
  for (const std::string_view name : names) {
    const size_t distance = distance_within(text, name, limit);
    if (distance > limit || (distance == limit && !nearest.empty())) continue;
    nearest = name;
    limit = distance;
  }
  return nearest;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string_view>& names) {
  const std::string_view nearest = nearest_name(text, names);
  return nearest.empty() ? "" : cat("; did you mean '", printable(nearest), "'?");
}

}  // namespace muster
