// The servers' side of a parameter server: a thread for each worker answers its requests. A pull
// waits until the worker may go on: with staleness, at most so many steps ahead of the slowest.
// Synchronous servers collect the gradients of all workers that are still here, and take one step
// with their mean; others take a step with each push. A lost worker is left out from then on.
#include "muster/parallel/averaging/parameter_server.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/text_of.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/optim/each_once.h"
#include "muster/parallel/averaging/parameter_link.h"
#include "muster/parallel/averaging/worker_pace.h"

namespace muster {

// Each worker has a thread here that talks with it. All of them change the shard and the pace under
// one lock.
struct ParameterServer::State {
  int rank = 0;                // this one's number in the job, which messages use
  std::vector<int> job_ranks;  // those of the group
  ParameterServerOptions options;
  std::shared_ptr<const TensorsOfModel> model;
  Tensors shard;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<ProcessGroup> workers;

  std::mutex mutex;
  std::condition_variable changed;
  WorkerPace pace{0, 0};
  TensorLists waiting;  // synchronous: a step's gradients, by worker
  Int64s pulled_at;     // updates that there were, by worker
  size_t finished = 0;
  std::exception_ptr failure;  // of the server itself: all sessions end
  BeforeUpdate before_update;
  ParameterServerReport report;

  void talk_with(size_t worker);
  bool answer(size_t worker, ProcessGroup& pair);
  void answer_pull(size_t worker, ProcessGroup& pair);
  void take_push(size_t worker, ProcessGroup& pair);
  void update(size_t worker, const Tensors& gradients);
  void update_when_all_have_come();
  void step_optimizer(const Tensors& gradients, int64_t staleness);
  void in_order(const Callback& change);
  void worker_left(size_t worker, const std::string& lost_by);
  void tell_lost(size_t worker, const std::string& lost_by);
};

namespace {

// It returns what is wrong with making a server on this rank, or nothing.
std::string wrong_parameter_server(const ProcessGroup& group,
                                   const ParameterServerOptions& options) {
  if (keeps_parameters(group, options))
    return "";
  return cat("parameter server: expected a ParameterClient on rank ",
             group.job_rank(),
             ", got a ParameterServer; ask keeps_parameters() which one to make");
}

// Returns nothing where no optimizer was made; `wrong` then says why, also to the other ranks.
std::unique_ptr<Optimizer> make_shard_optimizer(const ParameterServer::MakeOptimizer& make,
                                                const Tensors& shard,
                                                int rank,
                                                std::string& wrong) {
  // An exception on this rank alone would leave the others waiting, so it becomes a text.
  try {
    auto optimizer = make(shard);
    if (dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) != nullptr) {
      wrong = cat(
          "parameter server: expected an optimizer that steps without a closure, got LBFGS (rank ",
          rank,
          "); make SGD, Adam, AdamW, Adagrad or RMSprop");
      return nullptr;
    }
    if (optimizer)
      return optimizer;
    wrong = cat("parameter server: expected an optimizer, got none (rank ", rank, "); return one");
  } catch (const std::exception& error) {
    wrong = cat("parameter server: expected an optimizer, got: ",
                first_line(error),
                " (rank ",
                rank,
                "); see what makes it");
  }
  return nullptr;
}

// The mean is undefined where no worker has a gradient. A worker that has none where others have
// one counts as 0. The workers are added in their order, so the sum does not depend on who came
// first.
Tensors mean_in_order(const TensorLists& by_worker) {
  Tensors sums;
  int64_t count = 0;
  for (const Tensors& gradients : by_worker) {
    if (gradients.empty())
      continue;
    ++count;
    sums.resize(gradients.size());
    for (const size_t i : indices_of(sums)) {
      if (!gradients[i].defined())
        continue;
      sums[i] = sums[i].defined() ? sums[i].add_(gradients[i]) : gradients[i].clone();
    }
  }
  for (Tensor& sum : sums)
    if (sum.defined())
      sum.div_(count);
  return sums;
}

// The rates come by parameter group, in the optimizer's order.
Doubles learning_rates(Optimizer& optimizer) {
  return mapped(optimizer.param_groups(), [&](auto& group) { return group.options().get_lr(); });
}

// The caller gives the rates of before, so that factors do not pile up.
void set_learning_rates(Optimizer& optimizer, const Doubles& rates, double by) {
  for (const size_t i : indices_of(rates))
    optimizer.param_groups()[i].options().set_lr(rates[i] * by);
}

}  // namespace

ParameterServer::ParameterServer(const GivenParameters& parameters,
                                 ProcessGroup group,
                                 const MakeOptimizer& make,
                                 const ParameterServerOptions& options)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.rank = group.job_rank();
  state.job_ranks = group.job_ranks();
  state.options = options;
  state.model = parameters.model;
  const Tensors distinct = optim::each_once(parameters.tensors);
  std::string wrong = wrong_parameter_server(group, options);
  // The options may still be wrong here: connect_parameter_pairs() compares them on all ranks.
  if (wrong.empty() && options.servers <= std::ssize(distinct)) {
    state.shard = parameter_shards(distinct, options.servers)[group.rank()];
    state.optimizer = make_shard_optimizer(make, state.shard, state.rank, wrong);
  }
  state.workers = connect_parameter_pairs(group, distinct, options, wrong);
  state.pace = WorkerPace(state.workers.size(), options.staleness);
  state.waiting.resize(state.workers.size());
  state.pulled_at.resize(state.workers.size(), 0);
}

ParameterServer::~ParameterServer() = default;

// The sessions use the optimizer while serve() runs; only `before_update` may change it then.
Optimizer& ParameterServer::optimizer() {
  return *state_->optimizer;
}

// The calling thread only waits, as each worker has a thread of its own.
ParameterServerReport ParameterServer::serve(const BeforeUpdate& before_update) {
  State& state = *state_;
  require_present("ParameterServer", state.model, state.shard);
  state.before_update = before_update;
  std::vector<std::thread> threads;
  for (const size_t worker : indices_of(state.workers))
    threads.emplace_back([&state, worker] { state.talk_with(worker); });
  for (std::thread& thread : threads)
    thread.join();
  // The sessions have ended, so nobody uses the pairs any more.
  state.workers.clear();
  std::ranges::sort(state.report.lost);
  if (state.failure)
    std::rethrow_exception(state.failure);
  if (state.finished == 0) {
    throw Error(
        ErrorCode::peer_failed,
        "parameter server: expected a worker to finish, got none: ranks ",
        join(mapped(state.report.lost, [&](int lost) { return state.job_ranks[lost]; }), ", "),
        " are lost (rank ",
        state.rank,
        "); the first rank that failed has the cause");
  }
  return state.report;
}

// This worker's thread runs it. An Error means that the worker is lost, unless the server has
// failed; anything else is the server's own failure.
void ParameterServer::State::talk_with(size_t worker) {
  const NoGradGuard no_grad;
  ProcessGroup pair = workers[worker];
  std::string lost_by;
  try {
    while (answer(worker, pair)) {
    }
    pair.shutdown();
  } catch (const Error& error) {
    lost_by = error.message();
  } catch (...) {
    const Lock lock(mutex);
    failure = std::current_exception();
  }
  worker_left(worker, lost_by);
}

// False after the last request.
bool ParameterServer::State::answer(size_t worker, ProcessGroup& pair) {
  switch (receive_request(pair)) {
    case ParameterRequest::pull:
      answer_pull(worker, pair);
      return true;
    case ParameterRequest::push:
      take_push(worker, pair);
      return true;
    case ParameterRequest::finish:
      break;
  }
  const Lock lock(mutex);
  ++finished;
  return false;
}

// The copy is made under the lock and sent without it, so a slow worker holds up nobody.
void ParameterServer::State::answer_pull(size_t worker, ProcessGroup& pair) {
  Tensors now;
  {
    UniqueLock lock(mutex);
    changed.wait(lock, [&] { return failure || pace.may_go_on(worker); });
    // The session ends by an error, so that no parameters of a failed step are sent.
    if (failure)
      throw Error(ErrorCode::internal, "the server has failed");
    report.largest_lead = std::max(report.largest_lead, pace.lead(worker));
    pulled_at[worker] = report.updates;
    for (const Tensor& parameter : shard)
      now.push_back(parameter.detach().clone());
  }
  send_tensors(pair, 1, now);
}

// The worker's thread receives without the lock, so pushes of several workers arrive side by side.
void ParameterServer::State::take_push(size_t worker, ProcessGroup& pair) {
  Tensors gradients(shard.size());
  Tensors come;
  for (const int64_t i : receive_numbers(pair, 1)) {
    come.push_back(at::empty_like(shard.at(i)).detach());
    gradients[i] = come.back();
  }
  receive_tensors(pair, 1, come);
  const Lock lock(mutex);
  in_order([&] { update(worker, gradients); });
  if (failure)
    throw Error(ErrorCode::internal, "the server has failed");
}

// Changes what all sessions share. What fails then is the server's failure, and ends all sessions.
void ParameterServer::State::in_order(const Callback& change) {
  try {
    if (!failure)
      change();
  } catch (...) {
    failure = std::current_exception();
  }
  changed.notify_all();
}

// The caller of this, and of the functions up to step_optimizer(), holds the lock.
void ParameterServer::State::update(size_t worker, const Tensors& gradients) {
  pace.pushed(worker);
  const int64_t staleness = report.updates - pulled_at[worker];
  report.largest_staleness = std::max(report.largest_staleness, staleness);
  if (options.staleness != 0)
    return step_optimizer(gradients, staleness);
  waiting[worker] = gradients;
  update_when_all_have_come();
}

// Called after a push, and after a worker has left: the others may have waited for it alone.
void ParameterServer::State::update_when_all_have_come() {
  bool any = false;
  for (const size_t worker : indices_of(waiting)) {
    if (waiting[worker].empty() && pace.here(worker))
      return;
    any = any || !waiting[worker].empty();
  }
  if (!any)
    return;
  const Tensors mean = mean_in_order(waiting);
  for (Tensors& gradients : waiting)
    gradients.clear();
  step_optimizer(mean, 0);
}

// `before_update` runs under the lock too, so it never sees half a step.
void ParameterServer::State::step_optimizer(const Tensors& gradients, int64_t staleness) {
  if (before_update)
    before_update(*optimizer, report.updates);
  for (const size_t i : indices_of(shard))
    shard[i].mutable_grad() = gradients[i];
  // Gradients of an old model count less.
  const bool weighed = options.weigh_by_staleness && staleness > 0;
  const Doubles rates = learning_rates(*optimizer);
  if (weighed)
    set_learning_rates(*optimizer, rates, 1 / (1 + static_cast<double>(staleness)));
  optimizer->step();
  if (weighed)
    set_learning_rates(*optimizer, rates, 1);
  // The shard holds no gradients longer than its step.
  optimizer->zero_grad();
  ++report.updates;
}

// After a failure of the server its pair is closed with the last copy here, so that the worker
// hears of it.
void ParameterServer::State::worker_left(size_t worker, const std::string& lost_by) {
  const Lock lock(mutex);
  pace.left(worker);
  if (failure)
    workers[worker] = ProcessGroup(nullptr);
  if (!lost_by.empty() && !failure)
    tell_lost(worker, lost_by);
  in_order([&] {
    if (options.staleness == 0)
      update_when_all_have_come();
  });
}

// The lock is held. The pace knows already that the worker has left, so `left` does not count it.
void ParameterServer::State::tell_lost(size_t worker, const std::string& lost_by) {
  const int lost = options.servers + static_cast<int>(worker);
  report.lost.push_back(lost);
  const size_t left =
      filtered_indices(workers.size(), [this](size_t i) { return pace.here(i); }).size();
  log_warning("parameter server rank ",
              rank,
              ": worker rank ",
              job_ranks[lost],
              " is lost (",
              lost_by,
              "); ",
              plural(left, "worker"),
              word_for(left, " goes on", " go on"));
}

}  // namespace muster
