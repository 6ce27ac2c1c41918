// A tensor is a list of pieces, and each knows its file and its elements. A read finds the elements
// that are wanted in each piece, and copies the stretches that both have.
#include "muster/checkpoint/files/tensor_source.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_depth.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/shown_text.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr size_t kMostOpen = 64;

// Returns whole numbers of 0 or more; `wrong` becomes true for anything else.
Int64s counts_in(const json& array, bool& wrong) {
  Int64s counts;
  if (!array.is_array())
    wrong = true;
  for (const json& value : array) {
    const bool is_count = value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX;
    if (!is_count)
      wrong = true;
    counts.push_back(is_count ? value.get<int64_t>() : 0);
  }
  return counts;
}

// Returns what a record says of a tensor; `wrong` becomes true for anything else than a record.
PieceRecord record_in(const json& value, bool& wrong) {
  PieceRecord record;
  const bool is_record = value.is_object() && value.contains("shape") && value.contains("runs");
  if (!is_record || !value["runs"].is_array()) {
    wrong = true;
    return record;
  }
  record.shape = counts_in(value["shape"], wrong);
  for (const json& run : value["runs"]) {
    const Int64s numbers = counts_in(run, wrong);
    if (numbers.size() != 4) {
      wrong = true;
      return record;
    }
    record.elements.push_back(
        {.begin = numbers[0], .length = numbers[1], .stride = numbers[2], .count = numbers[3]});
  }
  return record;
}

[[noreturn]] void refuse_pieces(const std::string& file,
                                const std::string& name,
                                const std::string& got) {
  throw invalid_argument("checkpoint: expected pieces of whole tensors in '",
                         file,
                         "', got ",
                         got,
                         " for '",
                         shown_text(name),
                         "'; it is damaged, load another");
}

// Checks that a file has as much of a tensor as its record says, and that the record makes sense.
void check_record(const std::string& file,
                  const std::string& name,
                  const TensorEntry& entry,
                  const PieceRecord& record) {
  if (!has_whole_elements(entry.dtype))
    refuse_pieces(file, name, cat("some of ", to_string(entry)));
  const auto wrong = wrong_elements(record.elements, element_count(record.shape));
  if (!wrong.empty())
    refuse_pieces(file, name, wrong);
  const int64_t there = element_count(entry.shape), expected = element_count(record.elements);
  if (there != expected)
    refuse_pieces(file, name, cat(there, " elements instead of ", expected));
}

}  // namespace

// A run is four numbers: begin, length, stride, count.
std::string format_piece_records(const PieceRecords& records) {
  json all = json::object();
  for (const auto& [name, record] : records) {
    json runs = json::array();
    for (const ElementRun& run : record.elements)
      runs.push_back({run.begin, run.length, run.stride, run.count});
    all[name] = {{"shape", record.shape}, {"runs", std::move(runs)}};
  }
  return all.dump();
}

PieceRecords parse_piece_records(const std::string& text, const std::string& file) {
  const auto document = parsed_json<json>(text);
  bool wrong = !document.is_object();
  PieceRecords records;
  if (!wrong)
    for (const auto& item : document.items())
      records[item.key()] = record_in(item.value(), wrong);
  if (wrong)
    refuse_pieces(file, kPiecesKey, "something else");
  return records;
}

TensorSource::TensorSource(const Strings& paths) : paths_(paths) {
  for (const size_t file : indices_of(paths_))
    add(file, opened(file));
}

// A file that is asked for again may have been closed in between, to stay below the limit.
const SafetensorsFile& TensorSource::opened(size_t file) const {
  if (const SafetensorsFile* found = value_at(open_, file))
    return *found;
  if (open_.size() >= kMostOpen)
    open_.erase(open_.begin());
  return open_.emplace(file, SafetensorsFile(paths_[file])).first->second;
}

// A record without its tensor means that the file was put together wrongly.
void TensorSource::add(size_t file, const SafetensorsFile& opened) {
  const std::string& path = paths_[file];
  const SafetensorsHeader header = opened.header();
  PieceRecords records;
  for (const auto& [key, value] : header.metadata) {
    if (key == kPiecesKey)
      records = parse_piece_records(value, path);
    else
      metadata_.emplace(key, value);
  }
  for (const auto& [name, entry] : header.tensors) {
    const auto record = records.extract(name);
    if (record.empty()) {
      add_piece(
          name,
          {.dtype = entry.dtype, .shape = entry.shape},
          {.file = file, .begin = entry.begin, .elements = all_elements({tensor_units(entry)})});
      continue;
    }
    const auto& [shape, elements] = record.mapped();
    check_record(path, name, entry, record.mapped());
    add_piece(name,
              {.dtype = entry.dtype, .shape = shape},
              {.file = file, .begin = entry.begin, .elements = elements});
  }
  if (!records.empty())
    refuse_pieces(path, records.begin()->first, "no tensor");
}

// Two files must agree on a tensor and not have the same elements of it.
void TensorSource::add_piece(const std::string& name, const TensorEntry& kind, StoredPiece piece) {
  const std::string& path = paths_[piece.file];
  StoredTensor& stored = tensors_.try_emplace(name, StoredTensor{.kind = kind}).first->second;
  if (!stored.kind.same_kind(kind))
    refuse_pieces(path, name, cat(to_string(kind), " beside ", to_string(stored.kind)));
  const bool overlaps = any_of(stored.pieces, [&](const StoredPiece& other) {
    return !common_elements(other.elements, piece.elements).empty();
  });
  if (overlaps)
    refuse_pieces(path, name, "elements that another file has");
  stored.pieces.push_back(std::move(piece));
}

void TensorSource::keep_under(const std::string& prefix) {
  std::map<std::string, StoredTensor> kept;
  for (auto& [name, tensor] : tensors_)
    if (name.starts_with(prefix))
      kept.emplace(name.substr(prefix.size()), std::move(tensor));
  tensors_ = std::move(kept);
}

// Pieces do not overlap, so a tensor is whole if their elements add up.
Strings TensorSource::incomplete() const {
  Strings names;
  for (const auto& [name, tensor] : tensors_) {
    int64_t there = sum_of<int64_t>(
        tensor.pieces, [&](const StoredPiece& piece) { return element_count(piece.elements); });
    if (there != tensor_units(tensor.kind))
      names.push_back(name);
  }
  return names;
}

void TensorSource::require_whole(const char* who, const std::string& path) const {
  const Strings holes = incomplete();
  if (!holes.empty())
    throw invalid_argument(who,
                           ": expected all of '",
                           holes[0],
                           "' in '",
                           path,
                           "', got some of it; a rank's file is missing");
}

void TensorSource::read(const std::string& name, const Elements& elements, void* to) const {
  const StoredTensor* const found = value_at(tensors_, name);
  if (found == nullptr) {
    throw invalid_argument("checkpoint: expected a tensor '",
                           shown_text(name),
                           "', got none of that name; load what was saved");
  }
  const uint64_t size = safetensors_element_size(found->kind.dtype);
  char* const out = static_cast<char*>(to);
  int64_t missing = element_count(elements);
  for (const StoredPiece& piece : found->pieces) {
    for (const CommonElements& common : common_elements(piece.elements, elements)) {
      const uint64_t begin = piece.begin + common.at_first * size;
      opened(piece.file).read(out + common.at_second * size, common.length * size, begin);
      missing -= common.length;
    }
  }
  if (missing == 0)
    return;
  throw invalid_argument("checkpoint: expected ",
                         to_string(elements),
                         " of '",
                         shown_text(name),
                         "', got all but ",
                         missing,
                         " of these elements; a file of the checkpoint is missing");
}

}  // namespace muster
