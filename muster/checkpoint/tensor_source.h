// Named tensors that lie in several safetensors files, whole or in pieces, read as if they were whole: any
// elements of any of them. So what some ranks have written, other ranks read that divide it otherwise. Knows
// no LibTorch.
//
// A file of a rank holds its elements of each tensor as one flat tensor; which these are stands in the file's
// metadata under kPiecesKey. A tensor that is not named there is whole, as in any safetensors file.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/checkpoint/elements.h"
#include "muster/checkpoint/safetensors_file.h"

namespace muster {

constexpr const char* kPiecesKey = "muster.pieces";

// What a file's metadata says of a tensor of which it has a piece.
struct PieceRecord {
  std::vector<int64_t> shape;  // of the whole
  Elements elements;
};
using PieceRecords = std::map<std::string, PieceRecord>;

std::string format_piece_records(const PieceRecords& records);
// `file` is what messages call it. Throws: invalid_argument for any other text.
PieceRecords parse_piece_records(const std::string& text, const std::string& file);

// A piece of a tensor in one of the files.
struct StoredPiece {
  size_t file = 0;
  uint64_t begin = 0;  // in the file's data
  Elements elements;
};

struct StoredTensor {
  TensorEntry kind;  // dtype and shape of the whole
  std::vector<StoredPiece> pieces;
};

class TensorSource {
 public:
  TensorSource() = default;
  // Reads the heads. Throws: io; invalid_argument for a file that breaks the format's rules, pieces that do
  // not fit their tensor, overlap, or differ in their tensor's type or shape.
  explicit TensorSource(const std::vector<std::string>& paths);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }

  // Of all files, but for what it says of pieces.
  const Metadata& metadata() const { return metadata_; }

  // Names without a whole tensor: their pieces leave a hole. Such a source is what a save that was cut short
  // leaves, or one of whose files is missing.
  std::vector<std::string> incomplete() const;

  // These elements, in their order, to `to`, which has room for them. Throws: io; invalid_argument where
  // there is no such tensor, or some of the elements are in no piece.
  void read(const std::string& name, const Elements& elements, void* to) const;

 private:
  void add(size_t file, const SafetensorsFile& opened);
  const SafetensorsFile& opened(size_t file) const;

  std::vector<std::string> paths_;
  mutable std::map<size_t, SafetensorsFile> open_;  // some of them: a job of many ranks has many
  std::map<std::string, StoredTensor> tensors_;
  Metadata metadata_;
};

}  // namespace muster
