// The model that every rank has a copy of. It is compared over the ranks, set to rank 0's, and
// watched for parameters that users freeze, unfreeze or register during training.
#pragma once

#include <cstdint>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/model_source.h"
#include "muster/ddp/options.h"
#include "muster/ddp/trained_parameters.h"

namespace muster {

class ReplicatedModel {
 public:
  // Throws: invalid_argument for a model without trained parameters, one on another device than the
  // rank's, and wrong device_ids.
  ReplicatedModel(ModelSourcePtr model, ProcessGroup group, const DdpOptions& options);

  // Exchanges the ranks' models. Collective: yes.
  void gather();
  // Compares what was gathered, and sets new parameters to rank 0's. Collective: yes. Throws:
  // invalid_argument for models that differ.
  void take();
  // From now on the ranks share the parameters as they are. Nothing else may hold the gradient
  // accumulators of earlier ones: they know the shapes that the parameters had.
  void record();
  // The parameters trained since then.
  const TrainedParameters& trained() const { return trained_; }
  const Tensors& parameters() const { return kept_; }  // including frozen ones

  // The change of the parameters since then.
  enum class Change {
    none,
    all_frozen,  // as for a GAN's discriminator while its generator trains
    some         // call take() again
  };
  Change look() const;

  void broadcast_buffers(int root = 0);  // root's to all. Collective: yes.
  void broadcast_all(int root);          // parameters and buffers. Collective: yes.
  const ModelSource& source() const { return *model_; }
  bool in_training() const { return model_->is_training(); }

 private:
  bool only_freezes(const ParameterIdentities& now) const;
  Tensors new_parameters() const;
  Tensors buffers() const;
  void broadcast(const Tensors& tensors, int root = 0);

  ModelSourcePtr model_;
  ProcessGroup group_;
  const DdpOptions options_;
  TrainedParameters trained_;
  ParameterIdentities identities_;  // of all parameters whose values the ranks share
  Tensors kept_;                    // the same: keeps their addresses from being reused
  Strings descriptions_;            // of all ranks' models
  int64_t gathered_ = 0;
};

}  // namespace muster
