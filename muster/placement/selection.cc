#include "muster/placement/selection.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr std::string_view kUuidPrefix = "GPU-";
constexpr size_t kMaxTextShown = 200;
constexpr size_t kMaxEntryShown = 50;
constexpr int64_t kMaxIndex = 65535;

std::string shown(std::string_view text, size_t most) {
  return printable(text.substr(0, most)) + (text.size() > most ? "..." : "");
}

// `--gpus 0,x3: <problem>`, then the text again with a caret under character `at`.
[[noreturn]] void fail_at(const std::string& text, size_t at, const std::string& problem) {
  const std::string given = shown(text, kMaxTextShown);
  std::string message = cat("--gpus ", given, ": ", printable(problem), " (at character ", at + 1, ")");
  if (at <= kMaxTextShown) message += cat("\n  --gpus ", given, "\n         ", std::string(at, ' '), "^");
  throw Error(ErrorCode::invalid_argument, message);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Reads one entry of the text, character by character, so that an error knows its place.
class EntryParser {
 public:
  EntryParser(const std::string& text, size_t from, size_t to) : text_(text), at_(from), end_(to) {
    while (at_ < end_ && text_[at_] == ' ') ++at_;
    while (end_ > at_ && text_[end_ - 1] == ' ') --end_;
  }

  SelectionItem parse() {
    SelectionItem item;
    item.at = at_;
    item.length = end_ - at_;
    const std::string_view entry = std::string_view(text_).substr(at_, item.length);
    if (entry == "all") return item;
    if (entry.starts_with(kUuidPrefix)) {
      item.kind = SelectionItem::Kind::uuid;
      item.uuid_prefix = uuid(entry);
    } else {
      item.kind = SelectionItem::Kind::indices;
      item.first = item.last = index();
      if (at_ < end_ && text_[at_] == '-') {
        ++at_;
        item.last = index();
        if (item.last < item.first) {
          fail_at(text_, item.at, cat("expected a range that counts up, got ", shown(entry, kMaxEntryShown)));
        }
      }
      if (at_ < end_) unexpected();
    }
    return item;
  }

 private:
  [[noreturn]] void unexpected() const {
    constexpr const char* kExpected =
        "expected an index (3), a range (2-5), the beginning of a UUID (GPU-8f3c) or all, got ";
    fail_at(text_, at_,
            cat(kExpected, at_ < end_ ? cat("'", shown(text_.substr(at_, end_ - at_), kMaxEntryShown), "'")
                                      : "nothing"));
  }

  int index() {
    const size_t from = at_;
    while (at_ < end_ && is_digit(text_[at_])) ++at_;
    if (at_ == from) unexpected();
    const auto value = parse_int(std::string_view(text_).substr(from, at_ - from));
    if (!value || *value > kMaxIndex) fail_at(text_, from, cat("expected an index up to ", kMaxIndex));
    return static_cast<int>(*value);
  }

  // UUIDs are printed in lower case; people may type either.
  std::string uuid(std::string_view entry) const {
    std::string prefix(entry);
    for (size_t i = kUuidPrefix.size(); i < prefix.size(); ++i) {
      char& c = prefix[i];
      if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
      if (!is_digit(c) && !(c >= 'a' && c <= 'f') && c != '-') {
        fail_at(text_, at_ + i,
                cat("expected hexadecimal digits and '-' after GPU-, got '", text_[at_ + i], "'"));
      }
    }
    return prefix;
  }

  const std::string& text_;
  size_t at_;
  size_t end_;
};

// The GPUs of one host that one item means.
class Resolver {
 public:
  Resolver(const Selection& selection, const Host& host, const UsableGpus& usable)
      : selection_(selection), host_(host), usable_(usable) {}

  std::vector<UsableGpu> gpus_of(const SelectionItem& item) const {
    if (item.kind == SelectionItem::Kind::all) return usable_.gpus;
    if (item.kind == SelectionItem::Kind::uuid) return {by_uuid(item)};
    std::vector<UsableGpu> found;
    for (int index = item.first; index <= item.last; ++index) found.push_back(by_index(item, index));
    return found;
  }

  [[noreturn]] void fail(const SelectionItem& item, const std::string& problem) const {
    fail_at(selection_.text, item.at, cat(problem, "; ", describe(host_, usable_)));
  }

  int index_of(const UsableGpu& gpu) const { return host_.gpus[gpu.position].index.value; }

 private:
  UsableGpu by_index(const SelectionItem& item, int index) const {
    for (const UsableGpu& gpu : usable_.gpus) {
      if (index_of(gpu) == index) return gpu;
    }
    fail(item, cat("expected the index of a GPU that can be used, got ", index));
  }

  UsableGpu by_uuid(const SelectionItem& item) const {
    std::vector<UsableGpu> found;
    std::vector<std::string> uuids;
    for (const UsableGpu& gpu : usable_.gpus) {
      const std::string& uuid = host_.gpus[gpu.position].uuid.value;
      if (!uuid.starts_with(item.uuid_prefix)) continue;
      found.push_back(gpu);
      uuids.push_back(uuid);
    }
    if (found.size() == 1) return found[0];
    if (found.empty())
      fail(item,
           cat("expected the UUID of a GPU that can be used, got ", shown(item.uuid_prefix, kMaxEntryShown)));
    fail(item, cat("expected the beginning of one UUID, got ", item.uuid_prefix, ", which fits ",
                   join(uuids, " and "), ": give more of it"));
  }

  const Selection& selection_;
  const Host& host_;
  const UsableGpus& usable_;
};

}  // namespace

Selection parse_selection(std::string_view text) {
  Selection selection{.text = std::string(text), .items = {}};
  if (text.empty()) {
    selection.items.push_back({});
    return selection;
  }
  for (size_t from = 0;;) {
    const size_t to = std::min(selection.text.find(',', from), selection.text.size());
    selection.items.push_back(EntryParser(selection.text, from, to).parse());
    if (to == selection.text.size()) return selection;
    from = to + 1;
  }
}

std::vector<UsableGpu> select_gpus(const Selection& selection, const Host& host, const UsableGpus& usable) {
  const Resolver resolver(selection, host, usable);
  std::vector<UsableGpu> selected;
  for (const SelectionItem& item : selection.items) {
    for (const UsableGpu& gpu : resolver.gpus_of(item)) {
      if (std::find(selected.begin(), selected.end(), gpu) != selected.end()) {
        resolver.fail(item, cat("expected each GPU once, got GPU ", resolver.index_of(gpu), " again"));
      }
      selected.push_back(gpu);
    }
  }
  return selected;
}

}  // namespace muster
