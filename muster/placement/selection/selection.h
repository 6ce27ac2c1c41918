// The `--gpus` selection: text that names GPUs, and which GPUs of a host it means. These are two
// steps, so that a bad text is found before any machine is asked, and one text serves many hosts.
// To widen the grammar, add a kind here, its spelling in parse.cc and its meaning in selection.cc.
//
//     selection  = part , { ";" , part } ;                  several parts: each with its host
//     part       = [ host , ":" ] , entry , { "," , entry } ;
//     entry      = pick | exclusion | filter ;              blanks around each of these are skipped
//     pick       = "all" | "idle" | "free:" , count | "fastest:" , count | named ;
//     exclusion  = "!" , named ;
//     named      = index | index , "-" , index | "GPU-" , digits | "MIG-" , [ "GPU-" ] , digits ;
//     filter     = ( "mem" | "free" ) , compare , size | "model=" , text ;
//     compare    = ">=" | ">" | "<=" | "<" | "=" ;
//     size       = number , ( "B" | "KB" | "MB" | "GB" | "TB" | "KiB" | "MiB" | "GiB" | "TiB" ) ;
//     index      = decimal digits ;
//     count      = decimal digits ;
//     digits     = hexadecimal digits, "-", and in an instance's name "/" ;
//     host       = characters but : , ; ! < > = ;           none called "free" or "fastest"
//
// A part means this on a host, whatever the order of its entries:
// 1. Filters and exclusions together narrow the devices that can be used. `mem` is all of a
//    device's memory, `free` what is free now, `model` a piece of the model's name, in capitals or
//    not. A device that an exclusion names and the host has not is no error.
// 2. Picks take from what is left, and the result is in the order of the picks. Without a pick:
//    all. An index, range or beginning of a UUID must name a device that can be used, and no two
//    entries the same one; one that is there but was narrowed away is passed over. A GPU that is
//    split by MIG stands for all of its instances.
//    `idle`: every device with no compute process and (nearly) no memory used. `free:2`: the two
//    with the least memory used, of those with no compute process. `fastest:2`: the two with the
//    highest scores. These three pass over what an index, range or UUID anywhere in the part, or an
//    earlier one of them, takes; too few left for a count are an error.
// 3. Nothing left on a host is no error here: the planner says so when no host has any.
// A text without hosts means the same on every host; one with hosts gives the others nothing.
//
//     0,2-5                 GPUs 0, 2, 3, 4 and 5
//     2,GPU-8f3c            GPU 2, then the one with that UUID
//     a:0,1;b:2-3           of host a and of host b
//     !3                    all but GPU 3
//     0-3,mem>=20GiB        of 0 to 3 those that large
//     free:2,!0             the freest two, 0 left alone
//     idle,model=A100       A100s that nobody uses
//     fastest:2,free>10GB   the fastest two of those with so much free
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/device/inventory.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

struct SelectionItem {
  enum class Kind { all, idle, free, fastest, indices, uuid, memory, free_memory, model };
  enum class Compare { at_least, more, at_most, less, equal };
  Kind kind = Kind::all;
  bool excludes = false;  // "!": indices or uuid only
  int first = 0;          // indices: from `first` to `last`, both included
  int last = 0;
  int count = 0;       // free, fastest: how many
  std::string text{};  // uuid: its beginning; model: in lower case
  Compare compare = Compare::at_least;
  uint64_t bytes = 0;  // memory, free_memory
  size_t at = 0;       // where it stands: a byte of the text
  bool operator==(const SelectionItem&) const = default;
};

struct SelectionPart {
  std::string host{};  // empty: every host
  size_t at = 0;
  std::vector<SelectionItem> items{};  // never empty
  bool operator==(const SelectionPart&) const = default;
};

// It is made from its text by the grammar above, and can stand in for it: `request.gpus = "0,2-5"`.
struct Selection {
  Selection() : parts{{.items = {{}}}} {}  // all
  Selection(std::string text);  // NOLINT(google-explicit-constructor)  Throws: SelectionError.
  Selection(const char* text) : Selection(std::string(text)) {}

  bool is_all() const { return text.empty(); }

  // Whether an entry is of one of these kinds.
  bool has(std::initializer_list<SelectionItem::Kind> kinds) const;

  std::string text{};
  std::vector<SelectionPart> parts{};  // never empty
};

// It says what is wrong with a text, and where, for those who show it in a place of its own. The
// message has both, and points at the character.
class SelectionError : public Error {
 public:
  SelectionError(std::string problem, size_t at, const std::string& message)
      : Error(ErrorCode::invalid_argument, message), problem_(std::move(problem)), at_(at) {}

  const std::string& problem() const noexcept { return problem_; }
  size_t at() const noexcept { return at_; }  // byte of the text

 private:
  std::string problem_;
  size_t at_;
};

// Throws: SelectionError when a host is named that is none of `hosts`.
void check_selection_hosts(const Selection& selection, const std::vector<const Host*>& hosts);

// Whether the entry picks devices, and does not only narrow down what others pick.
bool is_pick(const SelectionItem& item);

// Whether the part is a list of GPUs, each told by its index or UUID.
bool names_each(const SelectionPart& part);

// Returns the part that is meant for `host`, or nullptr where the text names other hosts only.
const SelectionPart* part_for(const Selection& selection, const Host& host);

// Returns the devices of `host` that are selected, in the order of the picks. `scores` are for
// fastest:N. Throws: SelectionError when an entry names no usable GPU, a UUID's beginning fits
// several, a GPU is named twice, there are too few for a count, or a score is missing.
std::vector<UsableGpu> select_gpus(const Selection& selection,
                                   const Host& host,
                                   const UsableGpus& usable,
                                   const Scores& scores = {});

}  // namespace muster
