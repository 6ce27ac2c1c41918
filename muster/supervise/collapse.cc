// How it works: lines wait in a queue of groups. A line joins a group that has the same text, but
// only one behind its stream's last line, so that no stream's lines change places. Groups leave the
// front of the queue after a moment; `first_` counts them, so that a group's number stays its own.
#include "muster/supervise/collapse.h"

#include <optional>

#include "muster/base/lookup.h"

#include "muster/base/strings.h"

namespace muster {

namespace {

// The counter goes before the line's own end, which may be "\r\n".
std::string counted(const std::string& line, const IntSet& numbers) {
  const size_t end = line.find_last_not_of("\r\n") + 1;
  const auto body = line.substr(0, end);
  return cat("[", number_ranges(numbers), "] ", body, " ×", numbers.size(), line.substr(end));
}

}  // namespace

// Two numbers in a row are "0,1" and no range.
std::string number_ranges(const IntSet& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int from = *at;
    int to = from;
    while (++at != numbers.end() && *at == to + 1)
      ++to;
    text += cat(text.empty() ? "" : ",", from);
    const bool is_range = to > from + 1;
    if (to > from)
      text += cat(is_range ? "-" : ",", to);
  }
  return text;
}

void LineCollapser::add(int number,
                        const std::string& prefix,
                        const std::string& line,
                        TimePoint now) {
  const size_t* const last = value_at(last_of_, number);
  const bool waits = last != nullptr && *last >= first_;
  size_t at = waits ? *last - first_ + 1 : 0;
  while (at < groups_.size() && groups_[at].line != line)
    ++at;
  if (at == groups_.size())
    groups_.push_back({.line = line, .prefix = prefix, .numbers = {}, .since = now});
  groups_[at].numbers.insert(number);
  last_of_[number] = first_ + at;
}

// The front of the queue has waited longest, so that the first line that has not waited long enough
// ends the loop.
std::string LineCollapser::take(TimePoint now, bool all) {
  std::string text;
  while (!groups_.empty() && (all || now - groups_.front().since >= patience_)) {
    const Group& group = groups_.front();
    if (group.numbers.size() == 1)
      text += group.prefix + group.line;
    else
      text += counted(group.line, group.numbers);
    groups_.pop_front();
    ++first_;
  }
  return text;
}

OptionalTime LineCollapser::due() const {
  if (groups_.empty())
    return std::nullopt;
  return groups_.front().since + patience_;
}

}  // namespace muster
