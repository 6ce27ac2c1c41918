#include "tests/cuda/fake_uses.h"

#include <algorithm>
#include <iterator>

#include "muster/base/strings.h"

namespace muster::testing {

namespace {

std::string name_of(const c10::Stream& stream) {
  return cat("stream ", stream.id(), " of ", stream.device().str());
}

}  // namespace

std::string Uses::wrong(const Operation& now, const char* doing, const Past& past, bool wrote) {
  const std::string here = name_of(now.at.stream);
  const std::string there = name_of(past.at.stream);
  return cat("fake GPU: ",
             now.name,
             " on ",
             here,
             " ",
             doing,
             " memory that ",
             past.name,
             " on ",
             there,
             wrote ? " has written" : " has read",
             ": expected ",
             here,
             " to wait for what ",
             there,
             wrote ? " wrote" : " read",
             ", got no event between them (record one there and block this stream with it, or let "
             "the host wait)");
}

// A part that has bytes on both sides of `at` becomes two.
void Uses::cut(size_t at) {
  auto after = parts_.upper_bound(at);
  if (after == parts_.begin())
    return;
  const auto part = std::prev(after);
  if (part->first == at || part->second.end <= at)
    return;
  parts_.emplace_hint(after, at, part->second);
  part->second.end = at;
}

Uses::Parts::iterator Uses::first_from(size_t begin) {
  return parts_.lower_bound(begin);
}

// A read that an operation knows of is forgotten when it reads too: who knows of the later one
// knows of the earlier.
std::string Uses::read(size_t begin, size_t end, const Operation& operation) {
  cut(begin);
  cut(end);
  const Past now{operation.name, operation.at};
  size_t done = begin;
  for (auto part = first_from(begin); done < end;) {
    if (part == parts_.end() || part->first > done) {
      const size_t until = part == parts_.end() ? end : std::min(end, part->first);
      parts_.emplace_hint(part, done, Part{until, std::nullopt, {now}});
      done = until;
      continue;
    }
    Part& found = part->second;
    if (found.written && !operation.knows.knows(found.written->at))
      return wrong(operation, "reads", *found.written, /*wrote=*/true);
    std::erase_if(found.reads, [&](const Past& past) { return operation.knows.knows(past.at); });
    found.reads.push_back(now);
    done = found.end;
    ++part;
  }
  return "";
}

std::string Uses::write(size_t begin, size_t end, const Operation& operation) {
  cut(begin);
  cut(end);
  const auto first = first_from(begin);
  auto last = first;
  for (; last != parts_.end() && last->first < end; ++last) {
    const Part& found = last->second;
    if (found.written && !operation.knows.knows(found.written->at))
      return wrong(operation, "writes", *found.written, /*wrote=*/true);
    for (const Past& past : found.reads) {
      if (!operation.knows.knows(past.at))
        return wrong(operation, "writes", past, /*wrote=*/false);
    }
  }
  parts_.erase(first, last);
  parts_.emplace(begin, Part{end, Past{operation.name, operation.at}, {}});
  return "";
}

}  // namespace muster::testing
