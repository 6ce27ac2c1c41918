// A model's tensors as a rank has them: whole, or some elements of each. The classes that divide
// models (muster/parallel) return them; sharded checkpoints are made of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/files/elements.h"

namespace torch::nn {
class Module;
}

namespace muster {

// The parameters and buffers that a model had when pieces of it were made. A module that is
// replaced later has others, of which there are no pieces.
class TensorsOfModel {
 public:
  explicit TensorsOfModel(const torch::nn::Module& model);

  // `owner` begins the error, and `made` says what replacing must come before, as "the pieces are".
  // Nothing is known of a model that is gone, or was never shared. Throws: failed_precondition if
  // the model has another tensor, or none, in a place of before.
  void require_same(const char* owner, const char* made) const;
  // The same of parameters alone: a forward may replace a buffer. Returns whether the model has no
  // others besides.
  bool require_same_parameters(const char* owner, const char* made) const;
  // Throws: as require_same_parameters, and if the model has more parameters than before.
  void require_no_others(const char* owner, const char* made) const;
  // The first call that finds more buffers than before warns.
  void warn_of_other_buffers(const char* owner, const char* made) const;

 private:
  std::weak_ptr<const torch::nn::Module> model_;
  NamedTensorList parameters_, buffers_;
  mutable std::once_flag told_;
};

struct TensorPiece {
  std::string name;  // in the undivided model
  Int64s shape;      // of the undivided tensor
  Elements
      elements;  // the elements that `tensor` has, in its order; equal on all ranks that have them
  Tensor tensor;
  bool is_buffer =
      false;  // values may differ between the ranks that have it: the first rank's are used
  bool is_own = false;  // values differ and each rank's are kept; every rank has it whole
  // Restricts who else may have a tensor of this name to those with the same owner, such as a
  // pipeline stage.
  std::string owner{};
  // Other names of the same tensor, which a checkpoint may also contain and a load skips: for a
  // tied weight that an undivided model registers twice.
  Strings aliases{};
  std::shared_ptr<const TensorsOfModel> model =
      {};  // that the piece was made of, where it is known
};
using TensorPieces = std::vector<TensorPiece>;

TensorPiece whole_piece(std::string name, const Tensor& tensor);
TensorPiece buffer_piece(std::string name, const Tensor& tensor);  // the same for a buffer

// All parameters and buffers, for ranks that train alone for some steps (LocalSGD, DiLoCo,
// GossipAverage). Each rank has its own values and optimizer state, and gets them back. With
// another number of ranks, or loaded in another way, all ranks start with the mean. Throws: as
// model_tensors.
TensorPieces own_pieces(const torch::nn::Module& model);

// `tensor` is the whole tensor's slice from `begin` on along `dim`.
TensorPiece slice_piece(
    std::string name, Int64s shape, size_t dim, int64_t begin, const Tensor& tensor);

// All parameters and buffers, for a model that is whole on every rank. Throws: as model_tensors.
TensorPieces whole_pieces(const torch::nn::Module& model);

// Says that the pieces were made of the model. Call it once they are complete.
void note_model(TensorPieces& pieces, const torch::nn::Module& model);
// The models that pieces were made of, each once.
std::vector<std::shared_ptr<const TensorsOfModel>> models_of(const TensorPieces& pieces);

// Throws: invalid_argument for a piece that does not fit its shape or has no memory, and for two
// pieces with the same name and different elements.
void check_pieces(const TensorPieces& pieces);

}  // namespace muster
