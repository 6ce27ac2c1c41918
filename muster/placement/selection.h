// The `--gpus` selection: text that names GPUs, and which GPUs of a host it means. Two steps, so that a bad
// text is found before any machine is asked, and one text serves many hosts. To widen the grammar, add a kind
// here, its spelling in `parse_selection`, and its meaning in `select_gpus`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/placement/usable_gpus.h"

namespace muster {

struct SelectionItem {
  enum class Kind { all, indices, uuid };
  Kind kind = Kind::all;
  int first = 0;  // kind == indices: first..last, both included
  int last = 0;
  std::string uuid_prefix;  // kind == uuid, "GPU-…"
  size_t at = 0;            // where in the text it stands, and how long it is
  size_t length = 0;
  bool operator==(const SelectionItem&) const = default;
};

struct Selection {
  std::string text;
  std::vector<SelectionItem> items;  // never empty
};

// "" and "all": every usable GPU; else entries joined by commas, in the order wanted: an index "3", a range
// "2-5", a UUID or the beginning of one "GPU-8f3c".
// Throws: invalid_argument with a line that points at the character.
Selection parse_selection(std::string_view text);

// The GPUs of `host` that are selected, in the order given.
// Throws: invalid_argument, pointing likewise, when an entry names no usable GPU, a UUID prefix fits several,
// or a GPU is named twice.
std::vector<UsableGpu> select_gpus(const Selection& selection, const Host& host, const UsableGpus& usable);

}  // namespace muster
