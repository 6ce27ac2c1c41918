// The gradients of some parameters on their way to their owners. They are collected in a flat
// buffer and reduced over the group; each rank keeps its part (flat_layout.h) of the mean. Used by
// the classes that shard gradients; does not know when a backward starts or ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/same_samples.h"
#include "muster/parallel/sharded/flat_layout.h"
#include "muster/parallel/sharded/gradient_buffers.h"
#include "muster/parallel/sharded/sampled_gradients.h"

namespace muster {

class ScatteredGradients {
 public:
  // `replicas`: ranks of other groups with the same part; the mean includes them.
  ScatteredGradients(Tensors parameters,
                     FlatLayout layout,
                     ProcessGroup group,
                     std::shared_ptr<GradientBuffers> buffers,
                     std::optional<ProcessGroup> replicas,
                     ScalarType dtype);

  // Copies a parameter's gradient into the buffer and frees it. Throws: failed_precondition for a
  // sparse one, and for a second one before start().
  void take(size_t parameter);
  // Keeps a parameter's gradient for the next take(), which adds it, if the reduction is in another
  // type; its sum with earlier ones is in that type. Returns whether: else it stays where it is.
  bool keep(size_t parameter);
  void forget(size_t parameter);  // what was kept of it
  bool keeps(size_t parameter) const { return kept_[parameter].defined(); }
  bool complete() const {
    return taken_ == wanted_;
  }  // every trained parameter's gradient is there
  bool started() const { return work_.has_value(); }

  // Includes what earlier backwards accumulated in whole gradients; that of what is frozen by now
  // is dropped, which rank 0 logs. Missing gradients count as zeros. Collective: yes, and so is
  // finish().
  void start();
  // Before a start() at the end of a backward: hooks may have made what it reads on streams of
  // their own.
  void use_here() const;
  // Drops what is frozen alone, where nothing is to be reduced.
  void drop_of_frozen();
  // Returns this rank's part of the mean. Throws: as Work::wait.
  Tensor finish();
  void drop();  // discards what a failed backward has left
  // Two ranks that train on the same samples; found by the last finish(), once.
  const std::optional<Twins>& twins() const { return twins_; }

  int64_t bytes() const;  // of one buffer

 private:
  Tensor new_flat();
  std::optional<Twins> finish_samples();

  Tensors parameters_;
  FlatLayout layout_;
  ProcessGroup group_;
  std::shared_ptr<GradientBuffers> buffers_;
  std::optional<ProcessGroup> replicas_;
  ScalarType dtype_;
  double factor_;
  size_t wanted_ = 0, taken_ = 0;
  std::vector<bool> has_;
  Tensors kept_;
  Tensor flat_, part_;
  std::optional<Work> work_;
  std::vector<SampledGradients> sampled_;  // over the group, and over the replicas
  std::optional<Twins> twins_;
};

// Adds a part of the mean gradient to the gradients of the tensors that are pieces of the same
// part; untrained parameters get none.
void add_to_pieces(const Tensor& part,
                   const FlatPieces& pieces,
                   const Tensors& parameters,
                   Tensors& tensors);

// Ends the reduction of a bucket or a unit: its tensors get the mean, and its parameters stand-ins.
template <class Reduced>
void take_reduced(Reduced& reduced, SameSamplesWarning& same_samples, const ProcessGroup& group) {
  add_to_pieces(reduced.gradients->finish(), reduced.pieces, reduced.parameters, reduced.tensors);
  same_samples.say(reduced.gradients->twins(), group);
  for (const size_t i : indices_of(reduced.parameters))
    if (reduced.parameters[i].requires_grad())
      reduced.stand_ins->stand_for(i);
}

// At the end of a backward, for whoever called it: the tensors' gradients may have been made on the
// streams of hooks.
void give_gradients_to_this_stream(const Tensors& tensors);

// The norm of all ranks' gradients as one vector, in double; each tensor exists on only one rank of
// the group. Collective: yes.
Tensor sharded_grad_norm(const Tensors& tensors, ProcessGroup& group);
// Throws: failed_precondition for parameters of layers that are divided besides, over another
// group, whose ranks the norm would leave out.
void require_whole_layers(const Tensors& parameters, const ProcessGroup& group);
// Multiplies the gradients by min(1, max_norm / (norm + 1e-6)). Returns the norm before clipping.
// Collective: yes.
Tensor clip_sharded_grads(const Tensors& tensors, double max_norm, ProcessGroup& group);

}  // namespace muster
