// The data-parallel replicas of a pipeline's stages: equal parameters, and averages of gradients.
// Used only by pipeline.cc.
#pragma once

#include <optional>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/pipeline/gradients.h"
#include "muster/parallel/pipeline/pipeline.h"

namespace muster {

class Replicas {
 public:
  // All parameters become the first replica's. `stages` must outlive this. Collective: over
  // `group`. Throws: invalid_argument, on every replica, where their parameters differ in name,
  // form, or whether they are trained.
  Replicas(const std::vector<PipelineStage>& stages, ProcessGroup group);

  // Looks at what has happened to the parameters since the last call: other memory, other
  // parameters, some frozen or unfrozen. Collective and throws: as above.
  void follow();
  // Returns at once. `stage` counts this rank's.
  void start(int stage) { averages_[stage].start(); }
  // Starts what several stages share. Blocking: until all averages are in grad().
  void finish();

 private:
  // A parameter as the averages know it.
  struct Known {
    at::Tensor parameter;
    bool has_gradients;
  };

  void take_parameters();
  std::vector<Known> parameters_now() const;
  std::vector<Term> terms() const;
  std::vector<StageAverage*> all();

  const std::vector<PipelineStage>& stages_;
  ProcessGroup group_;
  std::vector<Known> known_;
  std::vector<StageAverage> averages_;  // by stage of this rank
  std::optional<StageAverage> shared_;  // of parameters that several of its stages have
};

}  // namespace muster
