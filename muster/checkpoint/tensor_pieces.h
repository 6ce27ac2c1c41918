// A model's tensors as a rank has them: whole, or some elements of each. What divides models gives them
// (muster/parallel), and checkpoints that every rank writes a part of are made of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/checkpoint/elements.h"

namespace torch::nn {
class Module;
}

namespace muster {

struct TensorPiece {
  std::string name;            // in the undivided model
  std::vector<int64_t> shape;  // there
  Elements elements;  // which of them `tensor` has, in its order; the same ones are alike on all ranks
  at::Tensor tensor;
  bool is_buffer = false;  // its values may differ over the ranks that have it: the first one's count
  bool is_own = false;     // they do, and each rank's are kept; every rank has it whole
  // Who else may have a tensor of this name: those of the same owner, as a stage of a pipeline, alone.
  std::string owner = {};
  // Other names of the same tensor, that a checkpoint may have beside `name` and a load passes over: of a
  // tied weight that an undivided model registers twice.
  std::vector<std::string> aliases = {};
};
using TensorPieces = std::vector<TensorPiece>;

TensorPiece whole_piece(std::string name, const at::Tensor& tensor);
TensorPiece buffer_piece(std::string name, const at::Tensor& tensor);  // the same of a buffer

// All parameters and buffers, for ranks that train alone for some steps (LocalSGD, DiLoCo, GossipAverage):
// each has values and an optimizer's state of its own, and gets them back. On another number of ranks, and
// where they are loaded in another way, all ranks begin with the mean. Throws: as model_tensors.
TensorPieces own_pieces(const torch::nn::Module& model);

// `tensor` is what the whole has from `begin` on along `dim`.
TensorPiece slice_piece(std::string name, std::vector<int64_t> shape, size_t dim, int64_t begin,
                        const at::Tensor& tensor);

// All parameters and buffers, for a model that every rank has whole. Throws: as model_tensors.
TensorPieces whole_pieces(const torch::nn::Module& model);

// Throws: invalid_argument for a piece that does not fit its shape or has no memory, and for two of one name
// with other elements.
void check_pieces(const TensorPieces& pieces);

}  // namespace muster
