// Text to Selection: the grammar of selection.h, read character by character, so that an error
// knows its place. A text is cut at ';' into parts and at ',' into entries; an entry is tried as
// each kind in turn.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/device/numbers.h"
#include "muster/placement/selection/error.h"
#include "muster/placement/selection/selection.h"

namespace muster {
namespace {

using Kind = SelectionItem::Kind;
using Compare = SelectionItem::Compare;

constexpr std::string_view kGpuPrefix = "GPU-";
constexpr std::string_view kMigPrefix = "MIG-";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// UUIDs hold hexadecimal digits in lower case and '-'.
bool is_in_uuid(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || c == '-';
}

// Reads one entry. `at_` is the place that is read next, and the one that errors name.
class EntryParser {
 public:
  EntryParser(const std::string& text, size_t from, size_t to) : text_(text), at_(from), end_(to) {
    skip_blanks();
    while (end_ > at_ && text_[end_ - 1] == ' ')
      --end_;
  }

  SelectionItem parse() {
    item_.at = at_;
    if (take("!")) {
      item_.excludes = true;
      skip_blanks();
      if (!named())
        fail("an index, a range or the beginning of a UUID after '!'");
    } else if (rest() == "all" || rest() == "idle") {
      item_.kind = rest() == "all" ? Kind::all : Kind::idle;
    } else if (!counted() && !filter() && !named()) {
      unexpected();
    }
    return item_;
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_, end_ - at_); }

  void skip_blanks() {
    while (at_ < end_ && text_[at_] == ' ')
      ++at_;
  }

  bool take(std::string_view word) {
    if (!rest().starts_with(word))
      return false;
    at_ += word.size();
    return true;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string got = at_ < end_ ? cat("'", shown(rest()), "'") : "nothing";
    fail_at(text_, at_, cat("expected ", expected, ", got ", got));
  }

  [[noreturn]] void unexpected() const {
    fail(
        "an index (3), a range (2-5), the beginning of a UUID (GPU-8f3c, MIG-8f3c), all, idle, "
        "free:2, fastest:2, a filter (mem>=20GiB, free>=20GiB, model=A100) or what to leave out "
        "(!3)");
  }

  bool at_digit() const { return at_ < end_ && is_digit(text_[at_]); }

  // The number must not be followed by letters; whoever calls this checks that.
  int number(const char* what) {
    const size_t from = at_;
    while (at_digit())
      ++at_;
    const std::string_view digits = std::string_view(text_).substr(from, at_ - from);
    const auto value = parse_number(digits, 0, kMaxNumber);
    if (!value)
      fail_at(text_, from, cat("expected ", what, " up to ", kMaxNumber));
    return *value;
  }

  // The entry is free:2 or fastest:2.
  bool counted() {
    if (take("free:")) {
      item_.kind = Kind::free;
    } else if (take("fastest:")) {
      item_.kind = Kind::fastest;
    } else {
      return false;
    }
    if (!at_digit())
      fail("how many GPUs, a number from 1");
    const size_t from = at_;
    item_.first = number("a number");
    if (item_.first < 1)
      fail_at(text_, from, "expected how many GPUs, a number from 1, got 0");
    if (at_ < end_)
      fail("nothing more after the number");
    return true;
  }

  // The entry is mem>=20GiB, free>=20GiB or model=A100.
  bool filter() {
    if (rest().starts_with("model") && rest().find('=') != std::string_view::npos)
      return model();
    // "free" alone is no filter, and a device called so is none either: both are errors of
    // `unexpected`.
    const size_t from = at_;
    const bool memory = take("mem");
    if (!memory && !take("free"))
      return false;
    skip_blanks();
    if (!comparison()) {
      at_ = from;
      return false;
    }
    item_.kind = memory ? Kind::memory : Kind::free_memory;
    item_.bytes = size();
    return true;
  }

  // A longer sign stands before the one that it begins with.
  bool comparison() {
    constexpr std::pair<const char*, Compare> kSigns[] = {{">=", Compare::at_least},
                                                          {">", Compare::more},
                                                          {"<=", Compare::at_most},
                                                          {"<", Compare::less},
                                                          {"=", Compare::equal}};
    for (const auto& [sign, compare] : kSigns) {
      if (!take(sign))
        continue;
      item_.compare = compare;
      return true;
    }
    return false;
  }

  uint64_t size() {
    skip_blanks();
    // Without a unit it would be bytes, which every GPU has: surely not what was meant.
    const char last = at_ < end_ ? text_[end_ - 1] : '.';
    const bool has_unit = !is_digit(last) && last != '.';
    try {
      if (has_unit)
        return parse_bytes(rest());
    } catch (const Error&) {
      fail("a size with its unit (20GiB)");
    }
    fail("a size with its unit (20GiB)");
  }

  bool model() {
    take("model");
    skip_blanks();
    if (!take("="))
      fail("'=' after model");
    skip_blanks();
    if (at_ == end_)
      fail("a piece of a model's name (model=A100)");
    item_.kind = Kind::model;
    item_.text = lower_case(std::string(rest()));
    return true;
  }

  // The entry is a beginning of a UUID, an index or a range.
  bool named() {
    if (rest().starts_with(kGpuPrefix) || rest().starts_with(kMigPrefix)) {
      item_.kind = Kind::uuid;
      item_.text = uuid();
      return true;
    }
    if (!at_digit())
      return false;
    item_.kind = Kind::indices;
    const size_t from = at_;
    item_.first = item_.last = number("an index");
    if (take("-")) {
      if (!at_digit())
        unexpected();
      item_.last = number("an index");
      if (item_.last < item_.first) {
        fail_at(text_,
                from,
                cat("expected a range that counts up, got ", item_.first, "-", item_.last));
      }
    }
    if (at_ < end_)
      unexpected();
    return true;
  }

  // UUIDs are printed in lower case; people may type either. MIG instances were once named after
  // their GPU: MIG-GPU-<uuid>/7/0.
  std::string uuid() {
    const bool mig = take(kMigPrefix);
    std::string prefix(mig ? kMigPrefix : kGpuPrefix);
    if (take(kGpuPrefix) && mig)
      prefix += kGpuPrefix;
    for (; at_ < end_; ++at_) {
      const char c = lower_case(text_[at_]);
      const bool divides_mig = mig && c == '/';
      if (!is_in_uuid(c) && !divides_mig) {
        fail_at(text_,
                at_,
                cat("expected hexadecimal digits and '-' after ",
                    prefix.substr(0, kGpuPrefix.size()),
                    ", got '",
                    text_[at_],
                    "'"));
      }
      prefix += c;
    }
    return prefix;
  }

  const std::string& text_;
  size_t at_;
  size_t end_;
  SelectionItem item_ = {};
};

size_t find_end(const std::string& text, char separator, size_t from, size_t most) {
  return std::min(text.find(separator, from), most);
}

// Takes the host that the part at `from` begins with. Returns where its entries begin.
size_t take_host(const std::string& text, size_t from, size_t to, SelectionPart& part) {
  part.at = from;
  const size_t stop = text.find_first_of(":,!<>=", from);
  if (stop >= to || text[stop] != ':')
    return from;
  const std::string_view name = trim(std::string_view(text).substr(from, stop - from));
  if (is_one_of(name, "free", "fastest"))
    return from;
  if (name.empty())
    fail_at(text, from, "expected a host's name before ':', got nothing");
  part.host = name;
  part.at = text.find(part.host, from);
  return stop + 1;
}

// An empty entry is an error of the entry, so that the place is right.
SelectionPart parse_part(const std::string& text, size_t from, size_t to) {
  SelectionPart part;
  from = take_host(text, from, to, part);
  for (;;) {
    const size_t end = find_end(text, ',', from, to);
    part.items.push_back(EntryParser(text, from, end).parse());
    if (end == to)
      return part;
    from = end + 1;
  }
}

// Of several parts every one has its host, and every host one part.
void check_parts(const Selection& selection) {
  if (selection.parts.size() == 1)
    return;
  std::set<std::string> hosts;
  for (const SelectionPart& part : selection.parts) {
    if (part.host.empty()) {
      fail_at(selection.text,
              part.at,
              "expected the host of each part between ';' (a:0,1;b:2-3), got none");
    }
    if (!hosts.insert(part.host).second) {
      fail_at(selection.text,
              part.at,
              cat("expected each host once, got ", shown(part.host), " again"));
    }
  }
}

}  // namespace

Selection::Selection(std::string given) : text(std::move(given)) {
  if (text.empty()) {
    parts.push_back({.items = {{}}});
    return;
  }
  for (size_t from = 0;;) {
    const size_t to = find_end(text, ';', from, text.size());
    parts.push_back(parse_part(text, from, to));
    if (to == text.size())
      break;
    from = to + 1;
  }
  check_parts(*this);
}

bool Selection::has(std::initializer_list<SelectionItem::Kind> kinds) const {
  const auto is_wanted = [&](const SelectionItem& item) {
    return std::ranges::find(kinds, item.kind) != kinds.end();
  };
  return std::ranges::any_of(
      parts, [&](const SelectionPart& part) { return std::ranges::any_of(part.items, is_wanted); });
}

}  // namespace muster
