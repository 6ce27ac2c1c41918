#include "muster/supervise/collapse.h"

#include <algorithm>

#include "muster/base/strings.h"

namespace muster {

std::string number_ranges(const std::set<int>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int from = *at;
    int to = from;
    while (++at != numbers.end() && *at == to + 1)
      ++to;
    text += cat(text.empty() ? "" : ",", from);
    if (to > from)
      text += cat(to > from + 1 ? "-" : ",", to);
  }
  return text;
}

void LineCollapser::add(int number,
                        const std::string& prefix,
                        const std::string& line,
                        Clock::time_point now) {
  // Behind its own last line, so that no stream's lines change places.
  const auto last = last_of_.find(number);
  const size_t from =
      last == last_of_.end() || last->second < first_ ? 0 : last->second - first_ + 1;
  for (size_t i = from; i < groups_.size(); ++i) {
    if (groups_[i].line != line)
      continue;
    groups_[i].numbers.insert(number);
    last_of_[number] = first_ + i;
    return;
  }
  groups_.push_back({.line = line, .prefix = prefix, .numbers = {number}, .since = now});
  last_of_[number] = first_ + groups_.size() - 1;
}

std::string LineCollapser::take(Clock::time_point now, bool all) {
  std::string text;
  while (!groups_.empty() && (all || now - groups_.front().since >= patience_)) {
    const Group& group = groups_.front();
    if (group.numbers.size() == 1) {
      text += group.prefix + group.line;
    } else {
      const size_t end = std::min(group.line.find_last_not_of("\r\n") + 1, group.line.size());
      text += cat("[",
                  number_ranges(group.numbers),
                  "] ",
                  group.line.substr(0, end),
                  " ×",
                  group.numbers.size(),
                  group.line.substr(end));
    }
    groups_.pop_front();
    ++first_;
  }
  return text;
}

std::optional<Clock::time_point> LineCollapser::due() const {
  if (groups_.empty())
    return std::nullopt;
  return groups_.front().since + patience_;
}

}  // namespace muster
