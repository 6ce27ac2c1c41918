// Text to Selection: the grammar of selection.h, read character by character, so that an error
// knows its place. A text is cut at ';' into parts and at ',' into entries; an entry is tried as
// each kind in turn.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
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

constexpr std::string_view kInUuid = "0123456789abcdef-";
constexpr std::string_view kInMigUuid = "0123456789abcdef-/";

using Word = std::pair<const char*, Kind>;
constexpr Word kWords[] = {{"all", Kind::all}, {"idle", Kind::idle}};
constexpr Word kCounted[] = {{"free:", Kind::free}, {"fastest:", Kind::fastest}};
constexpr Word kMemories[] = {{"mem", Kind::memory}, {"free", Kind::free_memory}};
// A longer sign stands before the one that it begins with.
constexpr std::pair<const char*, Compare> kSigns[] = {{">=", Compare::at_least},
                                                      {">", Compare::more},
                                                      {"<=", Compare::at_most},
                                                      {"<", Compare::less},
                                                      {"=", Compare::equal}};

// Reads one entry. `at_` is the place that is read next, and the one that errors name.
class EntryParser {
 public:
  EntryParser(const std::string& text, size_t from, size_t to) : text_(text), at_(from), end_(to) {
    skip_blanks();
    end_ = at_ + rest().find_last_not_of(' ') + 1;  // at_ where nothing is left, as npos + 1 is 0
  }

  SelectionItem parse() {
    item_.at = at_;
    if (take("!")) {
      item_.excludes = true;
      skip_blanks();
      if (!named())
        fail("an index, a range or the beginning of a UUID after '!'");
    } else if (const auto* const word = element_with(kWords, rest(), &Word::first)) {
      item_.kind = word->second;
    } else if (!counted() && !filter() && !named()) {
      unexpected();
    }
    return item_;
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_, end_ - at_); }

  void skip_blanks() { at_ = std::min(text_.find_first_not_of(' ', at_), end_); }

  bool take(std::string_view word) {
    if (!rest().starts_with(word))
      return false;
    at_ += word.size();
    return true;
  }

  // Takes one of these, and returns what it means, or nothing if none of them comes next.
  template <class Value, size_t N>
  std::optional<Value> take_one_of(const std::pair<const char*, Value> (&words)[N]) {
    for (const auto& [word, meaning] : words) {
      if (take(word))
        return meaning;
    }
    return std::nullopt;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string got = at_ < end_ ? in_quotes(shown(rest())) : "nothing";
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
    const auto kind = take_one_of(kCounted);
    if (!kind)
      return false;
    item_.kind = *kind;
    if (!at_digit())
      fail("how many GPUs, a number from 1");
    const size_t from = at_;
    item_.count = number("a number");
    if (item_.count < 1)
      fail_at(text_, from, "expected how many GPUs, a number from 1, got 0");
    if (at_ < end_)
      fail("nothing more after the number");
    return true;
  }

  // The entry is mem>=20GiB, free>=20GiB or model=A100.
  bool filter() {
    if (rest().starts_with("model") && contains(rest(), '='))
      return model();
    // "free" without a comparison is no filter: unexpected() tells what is.
    const size_t from = at_;
    const auto kind = take_one_of(kMemories);
    if (!kind)
      return false;
    skip_blanks();
    const auto compare = take_one_of(kSigns);
    if (!compare) {
      at_ = from;
      return false;
    }
    item_.kind = *kind;
    item_.compare = *compare;
    item_.bytes = size();
    return true;
  }

  // Without a unit it would be bytes, which every GPU has: surely not what was meant.
  uint64_t size() {
    skip_blanks();
    const bool has_unit = !rest().empty() && !is_digit(rest().back()) && rest().back() != '.';
    try {
      if (has_unit)
        return parse_bytes(rest());
    } catch (const Error&) {
      // The error below says what a size is.
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
    read_indices();
    return true;
  }

  void read_indices() {
    const size_t from = at_;
    item_.first = item_.last = number("an index");
    if (take("-")) {
      if (!at_digit())
        unexpected();
      item_.last = number("an index");
    }
    if (item_.last < item_.first) {
      fail_at(
          text_, from, cat("expected a range that counts up, got ", item_.first, "-", item_.last));
    }
    if (at_ < end_)
      unexpected();
  }

  // UUIDs are printed in lower case; people may type either. MIG instances were once named after
  // their GPU: MIG-GPU-<uuid>/7/0.
  std::string uuid() {
    const bool mig = take(kMigPrefix);
    std::string prefix(mig ? kMigPrefix : kGpuPrefix);
    if (take(kGpuPrefix) && mig)
      prefix += kGpuPrefix;
    const std::string_view allowed = mig ? kInMigUuid : kInUuid;
    for (; at_ < end_; ++at_) {
      const char c = lower_case(text_[at_]);
      if (!contains(allowed, c)) {
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
  SelectionItem item_;
};

// Calls take(begin, end) for each piece of [from, to), of which there is one at least.
template <class Take>
void for_each_piece(const std::string& text, char separator, size_t from, size_t to, Take take) {
  for (;;) {
    const size_t end = std::min(text.find(separator, from), to);
    take(from, end);
    if (end == to)
      return;
    from = end + 1;
  }
}

// Takes the host that the part at `from` begins with, if any. Returns where its entries begin.
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
  const size_t entries = take_host(text, from, to, part);
  for_each_piece(text, ',', entries, to, [&](size_t begin, size_t end) {
    part.items.push_back(EntryParser(text, begin, end).parse());
  });
  return part;
}

// Of several parts every one has its host, and every host one part.
void check_parts(const Selection& selection) {
  if (selection.parts.size() == 1)
    return;
  StringSet hosts;
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
  for_each_piece(text, ';', 0, text.size(), [&](size_t begin, size_t end) {
    parts.push_back(parse_part(text, begin, end));
  });
  check_parts(*this);
}

bool Selection::has(std::initializer_list<SelectionItem::Kind> kinds) const {
  const auto is_wanted = [&](const SelectionItem& item) {
    return contains(kinds, item.kind);
  };
  return any_of(parts, [&](const SelectionPart& part) { return any_of(part.items, is_wanted); });
}

}  // namespace muster
