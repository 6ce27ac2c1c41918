// The data-parallel replicas of a pipeline's stages: equal parameters, averages of gradients, and
// the first one's buffers.
// Used only by pipeline.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/outside_watch.h"
#include "muster/parallel/pipeline/gradients.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/pipeline/replica_samples.h"

namespace muster {

class Replicas {
 public:
  // All parameters become the first replica's, and the buffers unless they are each one's own.
  // `stages` must outlive this. Collective: over `group`. Throws: invalid_argument, on every
  // replica, where their parameters or these buffers differ in name or form, or in whether they are
  // trained.
  Replicas(const PipelineStages& stages, ProcessGroup group, bool broadcasts_buffers);

  // Looks at what has happened to the parameters since the last call: other memory, other
  // parameters, some frozen or unfrozen. Collective and throws: as above, and for new values that
  // the first replica does not have.
  void follow();
  // Returns at once. `stage` counts this rank's.
  void start(int stage);
  // Starts what several stages share. Blocking: until all averages are in grad(), and the first
  // replica's buffers here.
  void finish();

  // Whether the leaves of the next step's backwards are still of interest.
  bool looks_outside() const { return group_.size() > 1 && outside_.is_looking(); }
  // Takes the leaves of a step's backwards. The first replica warns of a trained tensor that no
  // stage has, once it differs between them. Collective: yes, in the first steps.
  void compare_outside(Tensors leaves);
  // Warns of replicas that train on the same samples, or apart. Collective: yes, on CPUs.
  void compare_samples();

 private:
  // A parameter as the averages know it.
  struct Known {
    Tensor parameter;
    bool has_gradients;
  };

  void take_parameters();
  void take_buffers();
  std::vector<Known> parameters_now() const;
  Terms terms() const;
  [[noreturn]] void refuse_values_of(int64_t job_rank) const;
  std::vector<StageAverage*> all();

  const PipelineStages& stages_;
  ProcessGroup group_;
  std::vector<Known> known_;
  std::vector<StageAverage> averages_;  // by stage of this rank
  std::optional<StageAverage> shared_;  // of parameters that several of its stages have
  bool broadcasts_buffers_;
  bool has_compared_buffers_ = false;
  OutsideWatch outside_{"pipeline"};
  ReplicaSamples samples_;
};

}  // namespace muster
