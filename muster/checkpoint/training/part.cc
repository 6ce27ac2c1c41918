// The adapters of parts that are no templates. Both kinds differ between ranks, so saving them
// gathers every rank's state.
#include "muster/checkpoint/training/part.h"

#include "muster/checkpoint/training/generator_states.h"
#include "muster/checkpoint/training/hook_states.h"

namespace muster {

namespace {

class HookPart : public TrainingPart {
 public:
  HookPart(const std::string& name, ProcessGroup& group, const Hook& hook)
      : TrainingPart(name), group_(group), hook_(hook) {}

  SavedState state() override { return hook_states(group_, hook_.state()); }
  void load(const SavedState& state) override { hook_.load_state(own_hook_state(group_, state)); }

 private:
  ProcessGroup& group_;
  Hook hook_;  // copies share what the hook remembers
};

class GeneratorsPart : public TrainingPart {
 public:
  explicit GeneratorsPart(ProcessGroup& group) : TrainingPart("generators"), group_(group) {}

  SavedState state() override { return generator_states(group_); }
  void load(const SavedState& state) override { load_generator_states(group_, state); }

 private:
  ProcessGroup& group_;
};

}  // namespace

std::unique_ptr<TrainingPart> hook_part(const std::string& name,
                                        ProcessGroup& group,
                                        const Hook& hook) {
  return std::make_unique<HookPart>(name, group, hook);
}

std::unique_ptr<TrainingPart> generators_part(ProcessGroup& group) {
  return std::make_unique<GeneratorsPart>(group);
}

}  // namespace muster
