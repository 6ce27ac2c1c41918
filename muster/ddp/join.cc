// Uneven inputs: a rank that has no more shadows the collectives of the others, with zeros. Before
// every forward all ranks tell each other what they are about to do, so that a shadow knows which
// collectives come. Source: torch.distributed.algorithms.Join and DistributedDataParallel's join
// hook.
#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <chrono>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/base/uneven_inputs.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/failure.h"
#include "muster/ddp/hook_adapter.h"
#include "muster/ddp/reducer_state.h"
#include "muster/ddp/sync_batch_norm.h"

namespace muster {

namespace {

// The Reducer waits for this work to know by how many ranks it divides. The number is known
// already.
class CountOfRanks : public c10d::Work {
 public:
  explicit CountOfRanks(int count)
      : future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {
    const Tensors result{at::full({1}, count, kFloat)};
    future_->markCompleted(IValue(result));
  }
  bool isCompleted() override { return true; }
  bool wait(milliseconds /*timeout*/) override { return true; }
  Tensors result() override { return future_->value().toTensorVector(); }
  FuturePtr getFuture() override { return future_; }

 private:
  FuturePtr future_;
};

// A rank that shadows has no batch whose statistics it could give. All ranks find it out here;
// modules and functions that are not converted are found by the first forward.
void check_no_shared_statistics(const ModelSource& model,
                                const ProcessGroup& group,
                                const JoinOptions& options) {
  if (group.size() == 1 || options.stop_together)
    return;
  auto tensors = model.parameters();
  append_all(tensors, model.buffers());
  for (const NamedTensor& one : tensors) {
    if (is_of_converted_norm(one.tensor))
      refuse_statistics_inside_of_join(group.job_rank());
  }
}

// Sends state and options as torch::save writes them, for any optimizer that can be saved, also
// where a rank has not taken a step yet. Parameters must be equal on all ranks.
void broadcast_optimizer(Optimizer& optimizer, ProcessGroup& group, int root) {
  if (group.size() == 1)
    return;
  const bool gives = group.rank() == root;
  std::string bytes;
  if (gives) {
    std::ostringstream stream;
    torch::save(optimizer, stream);
    bytes = std::move(stream).str();
  }
  group.broadcast_bytes(bytes, root);
  if (gives)
    return;
  std::istringstream stream(std::move(bytes));
  torch::load(optimizer, stream, group.device());
}

}  // namespace

// A rank without inputs runs one backward for each forward of the others, right behind it. Forwards
// before join() do not count.
void GradientReducer::State::refuse_second_forward() {
  const Lock lock(mutex);
  if (!awaits_in_join)
    return;
  throw failed_precondition(
      "DistributedDataParallel::join: expected a backward after each forward, got "
      "another forward before it (rank ",
      group.job_rank(),
      "); run both in one forward of the wrapped model, on joined batches or in a "
      "module that calls both, put NoGradGuard around a forward that has no backward, or "
      "give all ranks the same number of inputs");
}

// Meets the other ranks before a forward of this one. Returns the rank whose buffers count.
int GradientReducer::State::meet_in_join(bool forward_reduces) {
  if (forward_reduces && RanksShadow::here())
    refuse_second_forward();
  const auto change = forward_reduces ? model.look() : ReplicatedModel::Change::none;
  const auto answer =
      join->meet({.active = true,
                  .records = at::GradMode::is_enabled(),
                  .reduces = forward_reduces && change != ReplicatedModel::Change::all_frozen,
                  .broadcasts = options.broadcast_buffers && synchronize_buffers,
                  .changed = change == ReplicatedModel::Change::some});
  if (join->options().stop_together && answer.active < group.size())
    throw StopTogether{};
  if (forward_reduces) {
    parts.reducer->set_forward_pass_work_handle(c10::make_intrusive<CountOfRanks>(answer.active),
                                                join->options().divide_by_initial_world_size);
  }
  return answer.source;
}

// Takes part in what an active rank's forward does with the group.
void GradientReducer::State::shadow_forward(const JoinRounds::Answer& answer) {
  if (answer.plan.records)
    rebuild_buckets();
  if (answer.plan.broadcasts)
    steps.meet("at the beginning of a forward", [&] { model.broadcast_buffers(answer.source); });
  synchronize_buffers = answer.plan.reduces;
  if (answer.plan.reduces)
    replicas.count(model.source(), /*compares=*/false);
}

// The Reducer's buckets of zeros go through the same calls as the others' gradients do.
void GradientReducer::State::shadow_backward() {
  std::vector<FuturePtr> futures;
  auto buckets = parts.reducer->get_grad_buckets(/*return_zero_tensors=*/true);
  for (auto& bucket : buckets)
    futures.push_back(parts.reducer->run_comm_hook(bucket));
  if (finds_unused()) {  // this rank uses none
    Tensors used{parts.reducer->get_local_used_map_on_device().zero_()};
    group.watch_stream("all_reduce of used parameters", /*number=*/-1, [&] {
      group.c10d()->allreduce(used)->wait();
    });
  }
  steps.shadow();
  count_traffic();
  for (const auto& future : futures) {
    future->wait();
    if (parts.hook != nullptr)
      parts.hook->parseHookResult(future->value());
  }
  parts.reducer->push_rebuilt_params_for_all_indices();
  if (parts.hook != nullptr)
    parts.hook->end_step();
  order_known = true;
}

void GradientReducer::State::say_that_trial_rests() {
  if (!trial->running() || trial_rests_said || group.rank() != 0)
    return;
  trial_rests_said = true;
  log_info(
      "DistributedDataParallel: the trial of bucket sizes pauses inside join(); until it has run, "
      "buckets have PyTorch's size; train some steps outside join() first, or give bucket_cap_mb a "
      "number");
}

// Names what keeps the model from join(), or gives nullptr.
const char* GradientReducer::State::obstacle_to_join() const {
  if (join)
    return "one inside of it";
  if (contains(model.trained().sparse, true))
    return "sparse gradients";
  return options.static_graph ? "a static graph" : nullptr;
}

JoinResult GradientReducer::join(const Callback& body, const JoinOptions& options) {
  State& state = *state_;
  if (const char* const obstacle = state.obstacle_to_join()) {
    throw failed_precondition(
        "DistributedDataParallel::join: expected a model that is not inside of join() "
        "yet, without static_graph and without sparse gradients, got ",
        obstacle,
        " (rank ",
        state.group.job_rank(),
        "); give all ranks the same number of inputs");
  }
  check_no_shared_statistics(state.model.source(), state.group, options);
  struct Inside {
    State& state;
    const RanksShadow shadow;
    const UnevenInputs allowed = {};
    ~Inside() {
      state.join.reset();
      state.parts.reducer->set_forward_pass_work_handle({}, /*useStaticWorldSize=*/true);
    }
  } inside{state, RanksShadow(state.group.size() > 1 && !options.stop_together)};
  state.join.emplace(state.group, options);
  state.awaits_in_join = false;
  state.say_that_trial_rests();
  try {
    body();
  } catch (const StopTogether&) {
    return {.shadowed = 0, .stopped = true};
  }
  return state.shadow(options);
}

// This rank has no more inputs. It shadows the others until they have none either; then all take
// what the last active rank has.
JoinResult GradientReducer::State::shadow(const JoinOptions& join_options) {
  JoinResult result;
  for (;; ++result.shadowed) {
    const auto answer = join->meet({.shadowed = result.shadowed > 0});
    if (answer.active == 0) {
      model.broadcast_all(answer.source);
      for (Optimizer* optimizer : join_options.optimizers) {
        if (optimizer != nullptr)
          broadcast_optimizer(*optimizer, group, answer.source);
      }
      return result;
    }
    if (join_options.stop_together)
      return {.shadowed = 0, .stopped = true};
    translate_failures(cat("DistributedDataParallel::join on rank ", group.job_rank()), [&] {
      shadow_forward(answer);
      if (answer.plan.reduces)
        shadow_backward();
    });
  }
}

}  // namespace muster
