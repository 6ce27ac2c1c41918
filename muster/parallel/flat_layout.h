// How parameters lie one after the other in a flat buffer, of which each rank of a group owns an even part.
// Used by what shards state (sharded_optimizer.h, fully_sharded.h); knows nothing of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/agree.h"

namespace muster {

// The elements of one parameter that lie in one rank's part.
struct FlatPiece {
  size_t parameter;
  int64_t begin;   // of the parameter's elements
  int64_t at;      // in the rank's part
  int64_t length;  // above 0
};

struct FlatLayout {
  FlatLayout() = default;
  FlatLayout(const std::vector<at::Tensor>& parameters, int ranks);

  int64_t length() const { return part * ranks; }  // the padding at the end included
  // A parameter's place in a flat tensor of `length()` elements, in the parameter's shape.
  at::Tensor place(const at::Tensor& flat, size_t parameter) const;
  std::vector<FlatPiece> pieces(int rank) const;

  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> offsets, counts;
  int64_t part = 0;  // elements a rank, the same on each
  int ranks = 1;
};

// Compares the parameters' types, shapes, values and requires_grad, and what else `terms` names, over the
// group's ranks. `wrong`: what this rank has found wrong already. Collective. Throws: invalid_argument on
// every rank, when they differ, or one rank's lie on another device than its own or have been sharded
// already.
void agree_on_parameters(const std::string& owner, const std::vector<at::Tensor>& parameters,
                         std::string wrong, std::vector<Term> terms, ProcessGroup& group);

// Whether a parameter still is `place`. torch::load and vector_to_parameters give it memory of its own.
bool lies_at(const at::Tensor& parameter, const at::Tensor& place);
// Throws: failed_precondition where such memory has another shape or device than the place.
void require_same_place(const std::string& owner, const at::Tensor& parameter, const at::Tensor& place,
                        const ProcessGroup& group);

// The parameters in a new flat buffer, whose parts they are from now on. Returns the buffer.
at::Tensor flatten_parameters(const FlatLayout& layout, std::vector<at::Tensor>& parameters);

}  // namespace muster
