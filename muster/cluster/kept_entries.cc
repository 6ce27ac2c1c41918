// The list has ranges, as most entries of a log stand together: the joins of hosts that came
// together, and everything since the last order to start.
#include "muster/cluster/kept_entries.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// No log of a list has so many entries between two numbers.
constexpr int64_t kMostInARange = int64_t{1} << 24;

[[noreturn]] void refuse_list(const std::string& text) {
  throw invalid_argument("log: expected a list of its entries, got '", printable(text), "'");
}

}  // namespace

std::string kept_entries_key(const std::string& log) {
  return cat(log, "/kept");
}

void KeptEntries::add(int64_t number) {
  numbers_.insert(number);
  next_ = std::max(next_, number + 1);
}

void KeptEntries::remove(int64_t number) {
  numbers_.erase(number);
}

std::string KeptEntries::to_text() const {
  std::string text;
  for (auto at = numbers_.begin(); at != numbers_.end();) {
    const int64_t first = *at;
    int64_t last = first;
    while (++at != numbers_.end() && *at == last + 1)
      ++last;
    text += last == first ? cat(first, " ") : cat(first, "-", last, " ");
  }
  return cat(text, next_, "-");
}

// The last range is the one without an end.
KeptEntries KeptEntries::from_text(const std::optional<std::string>& text) {
  KeptEntries entries;
  if (!text)
    return entries;
  Strings ranges = split(*text, ' ');
  const auto tail = ranges.back().substr(0, ranges.back().find('-'));
  ranges.pop_back();
  for (const auto& range : ranges) {
    const Strings ends = split(range, '-');
    const int64_t first = parse_int(ends.front()).value_or(0);
    const int64_t last = parse_int(ends.back()).value_or(0);
    if (first < entries.next_ || last < first || last - first > kMostInARange)
      refuse_list(*text);
    for (int64_t number = first; number <= last; ++number)
      entries.add(number);
  }
  const int64_t next = parse_int(tail).value_or(0);
  if (next < entries.next_)
    refuse_list(*text);
  entries.next_ = next;
  return entries;
}

Int64s KeptEntries::take(int64_t count) {
  Int64s taken;
  while (std::ssize(taken) < count) {
    const bool is_listed = !numbers_.empty();
    taken.push_back(is_listed ? numbers_.extract(numbers_.begin()).value() : next_++);
  }
  return taken;
}

}  // namespace muster
