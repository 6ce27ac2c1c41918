// Named tensors in several safetensors files, whole or in pieces, read as if they were whole: any
// elements of any tensor. What some ranks wrote can thus be read by ranks that divide it
// differently. Knows nothing of LibTorch.
//
// A rank's file has its elements of each tensor as one flat tensor; the file's metadata lists them
// under kPiecesKey. A tensor not listed there is whole, as in any safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/elements.h"
#include "muster/checkpoint/files/safetensors_file.h"

namespace muster {

constexpr auto kPiecesKey = "muster.pieces";

// A record of a file's metadata, about a tensor of which it has a piece.
struct PieceRecord {
  Int64s shape;  // of the whole tensor
  Elements elements;
};
using PieceRecords = std::map<std::string, PieceRecord>;

std::string format_piece_records(const PieceRecords& records);
// `file` appears in messages. Throws: invalid_argument for malformed text.
PieceRecords parse_piece_records(const std::string& text, const std::string& file);

// A piece of a tensor in one of the files.
struct StoredPiece {
  size_t file = 0;
  uint64_t begin = 0;  // in the file's data
  Elements elements;
};

struct StoredTensor {
  TensorEntry kind;  // dtype and shape of the whole tensor
  std::vector<StoredPiece> pieces{};
};

class TensorSource {
 public:
  TensorSource() = default;
  // Reads the heads. Throws: io; invalid_argument for a malformed file, and for pieces that do not
  // fit their tensor, overlap, or differ in their tensor's type or shape.
  explicit TensorSource(const Strings& paths);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }

  // Forgets the tensors whose names do not begin with `prefix`, and takes it off the others' names.
  void keep_under(const std::string& prefix);

  // The metadata of all files, without the entries about pieces.
  const Metadata& metadata() const { return metadata_; }

  // Names of tensors whose pieces leave a hole, as after an interrupted save or if a file is
  // missing.
  Strings incomplete() const;

  // Throws: invalid_argument if there are such names; `who` reads the tensors of `path`.
  void require_whole(const char* who, const std::string& path) const;

  // Copies these elements, in their order, to `to`, which must be large enough. (Of F4 and F6,
  // bytes in place of elements.) Throws: io; invalid_argument if there is no such tensor, or no
  // piece has some of the elements.
  void read(const std::string& name, const Elements& elements, void* to) const;

 private:
  void add(size_t file, const SafetensorsFile& opened);
  void add_piece(const std::string& name, const TensorEntry& kind, StoredPiece piece);
  const SafetensorsFile& opened(size_t file) const;

  Strings paths_;
  mutable std::map<size_t, SafetensorsFile> open_;  // only some: a job of many ranks has many files
  std::map<std::string, StoredTensor> tensors_;
  Metadata metadata_;
};

}  // namespace muster
