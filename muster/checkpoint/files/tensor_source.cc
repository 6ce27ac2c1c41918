#include "muster/checkpoint/files/tensor_source.h"

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/shown_text.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr size_t kMostOpen = 64;

// Whole numbers of 0 or more alone; `wrong` becomes true for anything else.
std::vector<int64_t> counts_in(const json& array, bool& wrong) {
  std::vector<int64_t> counts;
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

PieceRecord record_in(const json& value, bool& wrong) {
  PieceRecord record;
  if (!value.is_object() || !value.contains("shape") || !value.contains("runs") ||
      !value["runs"].is_array()) {
    wrong = true;
    return record;
  }
  record.shape = counts_in(value["shape"], wrong);
  for (const json& run : value["runs"]) {
    const std::vector<int64_t> numbers = counts_in(run, wrong);
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
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoint: expected pieces of whole tensors in '",
                  file,
                  "', got ",
                  got,
                  " for '",
                  shown_text(name),
                  "'; it is damaged, load another"));
}

// Elements that lie in both, which two pieces of a tensor must not have.
bool overlap(const Elements& a, const Elements& b) {
  return !common_elements(a, b).empty();
}

}  // namespace

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
  const auto document =
      nests_too_deep(text) ? json() : json::parse(text, nullptr, /*allow_exceptions=*/false);
  bool wrong = !document.is_object();
  PieceRecords records;
  if (!wrong)
    for (const auto& item : document.items())
      records[item.key()] = record_in(item.value(), wrong);
  if (wrong)
    refuse_pieces(file, kPiecesKey, "something else");
  return records;
}

TensorSource::TensorSource(const std::vector<std::string>& paths) : paths_(paths) {
  for (size_t file = 0; file < paths_.size(); ++file)
    add(file, opened(file));
}

const SafetensorsFile& TensorSource::opened(size_t file) const {
  const auto found = open_.find(file);
  if (found != open_.end())
    return found->second;
  if (open_.size() >= kMostOpen)
    open_.erase(open_.begin());
  return open_.emplace(file, SafetensorsFile(paths_[file])).first->second;
}

void TensorSource::add(size_t file, const SafetensorsFile& opened) {
  const std::string& path = paths_[file];
  const SafetensorsHeader header = opened.header();
  PieceRecords records;
  if (const auto found = header.metadata.find(kPiecesKey); found != header.metadata.end())
    records = parse_piece_records(found->second, path);
  for (const auto& [key, value] : header.metadata)
    if (key != kPiecesKey)
      metadata_.emplace(key, value);
  for (const auto& [name, entry] : header.tensors) {
    const auto record = records.find(name);
    const bool is_piece = record != records.end();
    TensorEntry kind{.dtype = entry.dtype, .shape = is_piece ? record->second.shape : entry.shape};
    StoredPiece piece{
        .file = file,
        .begin = entry.begin,
        .elements = is_piece ? record->second.elements : all_elements({tensor_units(entry)})};
    if (is_piece) {
      if (!has_whole_elements(entry.dtype))
        refuse_pieces(path, name, cat("some of ", to_string(entry)));
      if (const auto wrong = wrong_elements(piece.elements, element_count(kind.shape));
          !wrong.empty())
        refuse_pieces(path, name, wrong);
      if (element_count(entry.shape) != element_count(piece.elements))
        refuse_pieces(path,
                      name,
                      cat(element_count(entry.shape),
                          " elements instead of ",
                          element_count(piece.elements)));
      records.erase(record);
    }
    auto [stored, is_new] = tensors_.try_emplace(name, StoredTensor{.kind = kind, .pieces = {}});
    if (!stored->second.kind.same_kind(kind))
      refuse_pieces(path, name, cat(to_string(kind), " beside ", to_string(stored->second.kind)));
    for (const StoredPiece& other : stored->second.pieces)
      if (overlap(other.elements, piece.elements))
        refuse_pieces(path, name, "elements that another file has");
    stored->second.pieces.push_back(std::move(piece));
  }
  if (!records.empty())
    refuse_pieces(path, records.begin()->first, "no tensor");
}

std::vector<std::string> TensorSource::incomplete() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    int64_t there = 0;
    for (const StoredPiece& piece : tensor.pieces)
      there += element_count(piece.elements);
    if (there != tensor_units(tensor.kind))
      names.push_back(name);
  }
  return names;
}

void TensorSource::read(const std::string& name, const Elements& elements, void* to) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoint: expected a tensor '",
                    shown_text(name),
                    "', got none of that name; load what was saved"));
  }
  const auto size = static_cast<int64_t>(safetensors_element_size(found->second.kind.dtype));
  int64_t missing = element_count(elements);
  for (const StoredPiece& piece : found->second.pieces) {
    for (const CommonElements& common : common_elements(piece.elements, elements)) {
      opened(piece.file)
          .read(static_cast<char*>(to) + common.at_second * size,
                static_cast<uint64_t>(common.length * size),
                piece.begin + static_cast<uint64_t>(common.at_first * size));
      missing -= common.length;
    }
  }
  if (missing == 0)
    return;
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoint: expected ",
                  to_string(elements),
                  " of '",
                  shown_text(name),
                  "', got all but ",
                  missing,
                  " of these elements; a file of the checkpoint is missing"));
}

}  // namespace muster
