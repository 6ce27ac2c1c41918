// The memory of a hook differs between ranks, so saving it gathers every rank's.
#include "muster/checkpoint/training/part.h"

#include "muster/checkpoint/training/hook_states.h"

namespace muster {

// Copies of a hook share what it remembers.
std::unique_ptr<TrainingPart> hook_part(const std::string& name,
                                        ProcessGroup& group,
                                        const Hook& hook) {
  return std::make_unique<PartOfFunctions>(
      name,
      [&group, hook] { return hook_states(group, hook.state()); },
      [&group, hook](const SavedState& state) { hook.load_state(own_hook_state(group, state)); });
}

}  // namespace muster
