// The parts of Context that need more than what it holds. A collective of the context runs on the
// job's group, whose ranks all have to come to it; what differs between ranks is found by the
// checks of sampler_checks.h.
#include "muster/run/context.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <string.h>

#include <filesystem>
#include <mutex>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/clock_alignment.h"
#include "muster/data/own_loaders.h"
#include "muster/run/sampler_checks.h"
#include "muster/supervise/stop_signals.h"
#include "muster/trace/activity.h"

namespace muster {

namespace {

// Returns the axes that order ranks: an axis of size 1 does not.
std::vector<MeshAxis> longer_axes(const MeshShape& mesh) {
  auto axes = mesh.axes;
  std::erase_if(axes, [](const MeshAxis& axis) { return axis.size == 1; });
  return axes;
}

// Above all signals: a task was asked to stop, as another one has failed.
constexpr int kStopOfTasks = 1 << 16;

// Another rank may have been told by a signal that this system has no name for.
std::string name_of_stop_signal(int signal) {
  if (signal == kStopOfTasks)
    return "another task has failed";
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? "a signal" : cat("SIG", name);
}

}  // namespace

bool Context::stop_requested() {
  static std::once_flag once;
  std::call_once(once, remember_stop_signals);
  return stop_signal() != 0 || is_stopped_task();
}

bool Context::is_stopped_task() const {
  return parts_.stop != nullptr && parts_.stop->load(std::memory_order_relaxed) != 0;
}

// The greatest signal of all ranks wins, so that all name the same one.
bool Context::should_stop() {
  const bool asked = stop_requested();
  const int own = is_stopped_task() ? kStopOfTasks : stop_signal();
  at::Tensor signal = at::full({1}, asked ? own : 0, kInt);
  process_group().all_reduce(signal, ReduceOp::max);
  const int seen = signal.item<int>();
  const bool is_news = seen != 0 && !stops_;
  if (is_news && is_main())
    log_info(name_of_stop_signal(seen), ": the ranks stop after this step");
  stops_ |= seen != 0;
  if (stops_)
    OwnLoaders::stop_job();
  return stops_;
}

// Ranks that cannot write a trace still take part in comparing the clocks, which is a collective.
void Context::trace() {
  if (run_dir().empty()) {
    throw failed_precondition("trace: expected a run folder to write to, got none (rank ",
                              rank(),
                              "); start the program with `muster run`, or by itself");
  }
  // A rank whose activity file could not be made has none, and has said so.
  Activity* const activity = Activity::get();
  try {
    if (activity != nullptr)
      activity->trace_into(event_path(run_dir(), parts_.env.attempt, rank()));
  } catch (const Error& error) {
    log_warning(error.message(), "; this rank is not in the trace");
  }
  align_clock(process_group(), activity);
}

void Context::seed_all(uint64_t seed) const {
  at::manual_seed(seed);
}

std::string Context::run_dir(const std::string& asked) const {
  const auto& folder = asked.empty() ? run_dir() : asked;
  if (folder.empty()) {
    throw invalid_argument(
        "--run-dir: expected a folder, got none, since this launcher gives none; pass one, or use "
        "`muster run`");
  }
  if (is_main())
    std::filesystem::create_directories(folder);
  return folder;
}

// The launcher has ordered the GPUs for its own mesh, so another one would have slow links.
Mesh Context::mesh(std::vector<MeshAxis> axes) {
  const MeshShape& told = parts_.mesh;
  if (axes.empty() && told.axes.empty()) {
    throw invalid_argument(
        "mesh: expected axes, got none; pass them, or start with muster run --mesh dp=2,tp=2 or "
        "RunOptions::mesh");
  }
  if (axes.empty())
    return {process_group(), told.axes};
  const MeshShape asked = checked_mesh(std::move(axes), world_size());
  if (!told.axes.empty() && longer_axes(asked) != longer_axes(told)) {
    throw invalid_argument("mesh: expected ",
                           to_string(told),
                           " of --mesh or RunOptions::mesh, by which the GPUs are ordered, got ",
                           to_string(asked),
                           " (rank ",
                           rank(),
                           "); give the same there");
  }
  return {process_group(), asked.axes};
}

DistributedSampler Context::sampler(int64_t length, SamplerOptions options) {
  return sampler(options.shuffle ? shuffled(length) : in_order(length), std::move(options));
}

DistributedSampler Context::sampler(SampleOrder order, SamplerOptions options) {
  options.num_replicas = world_size();
  options.rank = rank();
  if (options.shares.empty())
    options.shares = parts_.batch_shares;
  DistributedSampler sampler(std::move(order), options);
  sampler.set_first_epoch_check(check_of_samplers(process_group()));
  return sampler;
}

DistributedSampler Context::sampler(SampleOrder order, ProcessGroup group, SamplerOptions options) {
  if (group.size() == world_size())
    return sampler(std::move(order), std::move(options));
  if (!parts_.batch_shares.empty()) {
    throw invalid_argument(
        "sampler: expected no global batch (--global-batch, RunOptions::global_batch) where ",
        group.size(),
        " of ",
        world_size(),
        " ranks share the samples (rank ",
        rank(),
        "); leave it out, and give each rank its batch size");
  }
  options.num_replicas = group.size();
  options.rank = group.rank();
  DistributedSampler sampler(std::move(order), options);
  sampler.set_first_epoch_check(check_of_mesh_samplers(process_group(), group.size()));
  return sampler;
}

// A stream's ranks read parts of equal size, so shares of a global batch cannot be had.
StreamLoaderOptions Context::stream_options(StreamLoaderOptions options) const {
  if (!parts_.batch_shares.empty()) {
    throw invalid_argument(
        "loader: expected no global batch (--global-batch, RunOptions::global_batch) with a "
        "stream, whose ranks read batches of one size (rank ",
        rank(),
        "); leave it out, or give each rank its batch size by a StreamLoader");
  }
  options.device = device();
  options.rank = rank();
  options.ranks = world_size();
  return options;
}

std::shared_ptr<BatchSampler> Context::cost_balanced(SampleOrder order,
                                                     Doubles costs,
                                                     CostBalancedOptions options) {
  options.num_replicas = world_size();
  options.rank = rank();
  auto sampler = muster::cost_balanced(std::move(order), std::move(costs), options);
  sampler->set_first_epoch_check(check_of_samplers(process_group()));
  return sampler;
}

}  // namespace muster
