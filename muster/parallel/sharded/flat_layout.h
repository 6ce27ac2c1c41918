// The layout of parameters in a flat buffer of which each rank of a group owns an equal part. Used
// by the classes that shard state (sharded_optimizer.h, fully_sharded.h); knows nothing of
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/agree.h"

namespace muster {

// The elements of one parameter in one rank's part.
struct FlatPiece {
  size_t parameter;
  int64_t begin;   // of the parameter's elements
  int64_t at;      // in the rank's part
  int64_t length;  // above 0
};
using FlatPieces = std::vector<FlatPiece>;

struct FlatLayout {
  FlatLayout() = default;
  FlatLayout(const Tensors& parameters, int ranks);

  int64_t length() const { return part * ranks; }  // including the padding at the end
  // A view of a parameter's place in a flat tensor of `length()` elements, in the parameter's
  // shape.
  Tensor place(const Tensor& flat, size_t parameter) const;
  FlatPieces pieces(int rank) const;
  Tensor part_of(const Tensor& flat, int rank) const { return flat.narrow(0, part * rank, part); }

  std::vector<Int64s> shapes;
  Int64s offsets, counts;
  int64_t part = 0;  // elements per rank, the same on each
  int ranks = 1;
};

// What is wrong with parameters whose gradients are about to be divided, where a
// DistributedDataParallel that lives averages them; or nothing.
std::string wrapped_problem(const std::string& owner,
                            const Tensors& parameters,
                            const ProcessGroup& group);

// Compares the parameters' types, shapes, values and requires_grad, and everything in `terms`, over
// the group's ranks. `wrong`: what this rank has already found wrong. Collective: yes. Throws:
// invalid_argument, on every rank, if they differ, or if a rank's parameters are on another device
// than its own, are already sharded, or if two have memory in common and one of them is trained.
void agree_on_parameters(const std::string& owner,
                         const Tensors& parameters,
                         std::string wrong,
                         Terms terms,
                         ProcessGroup& group);

// Whether a parameter still has the memory of `place`; torch::load and vector_to_parameters give it
// new memory.
bool lies_at(const Tensor& parameter, const Tensor& place);
// Throws: failed_precondition if such memory has another shape or device than the place.
void require_same_place(const std::string& owner,
                        const Tensor& parameter,
                        const Tensor& place,
                        const ProcessGroup& group);

// Moves the parameters into `flat`, which has the layout's length; they become views of it.
void flatten_parameters(const FlatLayout& layout, const Tensor& flat, Tensors& parameters);

}  // namespace muster
