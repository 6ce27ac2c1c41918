// What a mode was before is noted for every submodule: one of them may be in another mode than the
// model, as a frozen batch norm is.
#include "muster/train/evaluation_mode.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/rows.h"
#include "muster/ddp/live_reducers.h"
#include "muster/ddp/value_sample.h"
#include "muster/optim/parts.h"

namespace muster {

namespace {

template <class Model>
void share_buffers(const Model& model, ProcessGroup& group) {
  for (const Tensor& buffer : model.buffers())
    if (group.size() > 1 && buffer.defined())
      group.broadcast(buffer, 0);
}

// Experts of each rank's own, and parts of divided layers.
bool is_of_this_rank(const Tensor& parameter) {
  const bool is_ignored = LiveReducer::any_knows(parameter) && !LiveReducer::any_has(parameter);
  return is_ignored || optim::is_layer_part(parameter);
}

bool have_as_many(int64_t count, ProcessGroup& group) {
  const std::vector<int64_t> counts = all_gather_rows(group, count);
  return all_of(counts, [&](int64_t other) { return other == count; });
}

// Returns the samples of all ranks, one rank's behind another's; none where ranks have other
// numbers of tensors.
std::vector<ValueSample> samples_of_all(const Tensors& tensors, ProcessGroup& group) {
  if (!have_as_many(std::ssize(tensors), group) || tensors.empty())
    return {};
  const std::vector<ValueSample> samples = awaited_samples_of(tensors);
  constexpr int64_t bytes = sizeof(ValueSample);
  const Tensor mine = at::empty({std::ssize(samples), bytes}, kByte);
  std::memcpy(mine.mutable_data_ptr(), samples.data(), mine.nbytes());
  const Tensor all = at::empty({group.size() * std::ssize(samples), bytes}, kByte);
  group.all_gather(all, mine);
  return rows_of<ValueSample>(all);
}

// Whether the model was not asked for before: ranks may mean to train apart.
bool is_first_of(const Module& model) {
  static std::mutex mutex;
  static std::set<const Module*> told;
  const Lock lock(mutex);
  return told.insert(&model).second;
}

// Between two averages of local SGD, or where each rank trains alone, the scores would be those of
// several models.
void warn_of_other_weights(const Module& model, ProcessGroup& group) {
  auto parameters = model.named_parameters().items();
  std::erase_if(parameters, [](const auto& item) { return is_of_this_rank(item.value()); });
  if (group.size() == 1)
    return;
  const auto samples =
      samples_of_all(mapped(parameters, [](const auto& item) { return item.value(); }), group);
  const size_t count = parameters.size();
  const auto numbers = numbers_below(samples.size());
  const auto other = std::ranges::find_if(
      numbers, [&](size_t i) { return samples[i % count].differs_from(samples[i]); });
  if (other == numbers.end() || group.rank() > 0 || !is_first_of(model))
    return;
  log_warning("evaluation: expected one model on all ranks, got other weights on rank ",
              group.job_rank(static_cast<int>(*other / count)),
              " in '",
              parameters[*other % count].key(),
              "', so that the scores are those of several models (rank ",
              group.job_rank(),
              "); average them first, as by average() of LocalSGD, or load one on all ranks");
}

}  // namespace

// Parents come first: train() sets the mode of everything inside.
EvaluationMode::EvaluationMode(Module& model, ProcessGroup& group) {
  warn_of_other_weights(model, group);
  share_buffers(model, group);
  auto inside = mapped(model.modules(/*include_self=*/false),
                       [](const auto& module) { return std::pair(module, module->is_training()); });
  restore_ = [&model, was_training = model.is_training(), inside = std::move(inside)] {
    model.train(was_training);
    for (const auto& [module, was_training] : inside)
      module->train(was_training);
  };
  model.eval();
}

// A frozen script has no modes.
EvaluationMode::EvaluationMode(torch::jit::Module& model, ProcessGroup& group) {
  share_buffers(model, group);
  std::vector<std::pair<torch::jit::Module, bool>> modes;
  for (const torch::jit::Module& module : model.modules())
    if (module.hasattr("training"))
      modes.emplace_back(module, module.is_training());
  for (auto& [module, was_training] : modes)
    module.setattr("training", false);
  restore_ = [modes = std::move(modes)]() mutable {
    for (auto& [module, was_training] : modes)
      module.setattr("training", was_training);
  };
}

EvaluationMode::~EvaluationMode() {
  restore_();
}

// The first forward after a training step broadcasts the buffers: all ranks do it now, since one
// may have nothing to evaluate.
void EvaluationMode::settle(GradientReducer& reducer) {
  reducer.before_forward();
  reducer.after_forward({});
}

}  // namespace muster
