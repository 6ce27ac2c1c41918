// The tensors of one kind, "model" or "optim", in a checkpoint, as a rank reads them, whoever wrote
// them. If ranks trained alone for some steps (own_pieces), each rank's own. Called by
// sharded_load.cc; sharded_save.cc takes the file names from here.
#pragma once

#include <string>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/tensor_pieces.h"

namespace muster {

// The file of a rank's own tensors, from rank 1 on: rank 0's are the model's and the optimizer's.
std::string own_file(int rank, const std::string& kind);

class SavedTensors {
 public:
  SavedTensors() = default;
  // For `rank` of `ranks`. Throws: as TensorSource.
  SavedTensors(const std::string& path,
               const Manifest& manifest,
               const std::string& kind,
               int rank,
               int ranks);

  // Rank 0's, if ranks have their own.
  const TensorSource& source() const { return source_; }

  // How many ranks saved their own tensors; 0: all had the same.
  int owners() const { return own_.empty() ? 0 : static_cast<int>(own_.size() + 1); }

  // The entries for these pieces: this rank's own, or rank 0's.
  TensorEntries entries(const TensorPieces& pieces) const;

  // Fills the piece's tensor. If ranks saved their own tensors, a piece that is own gets this
  // rank's, provided that the same number of ranks saved; otherwise it gets the mean over all ranks
  // (integers: rank 0's). Throws: as TensorSource::read.
  void fetch(const TensorPiece& piece) const;

 private:
  bool reads_own(const TensorPiece& piece) const { return piece.is_own && owners() == ranks_; }
  const TensorSource& own() const { return rank_ == 0 ? source_ : own_[rank_ - 1]; }
  void read(const TensorSource& from, const TensorPiece& piece, const Tensor& to) const;
  void read_mean(const TensorPiece& piece, const Tensor& to) const;

  std::string path_;
  int rank_ = 0;
  int ranks_ = 1;
  TensorSource source_;
  std::vector<TensorSource> own_;  // of ranks 1, 2, …
};

}  // namespace muster
