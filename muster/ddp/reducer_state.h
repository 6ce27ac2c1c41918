// The state and the logic of a GradientReducer. Its functions are in gradient_reducer.cc
// (forwards), gradient_backward.cc (hooks of a backward) and join.cc (ranks without more inputs).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "muster/base/clock.h"
#include "muster/ddp/bucket_trial.h"
#include "muster/ddp/bucket_views.h"
#include "muster/ddp/compute_clock.h"
#include "muster/ddp/gradient_arrivals.h"
#include "muster/ddp/gradient_hooks.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/ddp/join_rounds.h"
#include "muster/ddp/live_reducers.h"
#include "muster/ddp/local_gradients.h"
#include "muster/ddp/outputs.h"
#include "muster/ddp/parameter_uses.h"
#include "muster/ddp/reducer_setup.h"
#include "muster/ddp/replica_check.h"
#include "muster/ddp/replica_watch.h"
#include "muster/ddp/replicated_model.h"
#include "muster/ddp/step_check.h"
#include "muster/trace/span.h"

namespace muster {

struct GradientReducer::State : std::enable_shared_from_this<GradientReducer::State> {
  // The purpose of the next backward. Forwards set it and hooks check it: a backward that no
  // forward announced would silently leave gradients local.
  enum class Expected { nothing, local, reduction };

  State(ModelSourcePtr source, ProcessGroup group_, const DdpOptions& options_)
      : model(std::move(source), group_, options_),
        group(std::move(group_)),
        options(options_),
        steps(group, options.check_steps),
        watch(group, options),
        replicas(group, options) {
    options.hook.take();
  }
  ~State() { options.hook.release(); }

  bool finds_unused() const { return options.find_unused_parameters && !options.static_graph; }

  // gradient_reducer.cc
  bool follow_model();
  void drop_local_gradients(const TrainedParameters& before) const;
  void build_reducer();
  void rebuild_buckets();
  void try_buckets();
  void recover();
  void prepare_forward();
  void broadcast_buffers_from(int root);
  void after_local_forward(const ForwardOutputs& outputs);
  void after_reduced_forward(ForwardOutputs& outputs);

  // gradient_backward.cc
  bool watch_outputs(const ForwardOutputs& outputs,
                     Expected of,
                     const std::shared_ptr<StepCheck::Forward>& forward = nullptr);
  void on_backward();
  bool must_be_reduced(size_t index);
  void on_gradient(size_t index);
  void on_gradient_elsewhere(size_t index);
  [[noreturn]] void refuse(size_t index, const char* why) const;
  [[noreturn]] void refuse_from_inside(size_t index) const;
  [[noreturn]] void refuse_of_earlier_forward(size_t index) const;
  void after_graph();
  void after_graph_without_gradients();
  void meet_at_graph_end();
  void finish_backward();
  void keep_local(size_t index);
  void drop_local();
  void warn_of_local_step();
  void expect(Expected next);
  void expect_nothing();
  void count_traffic();

  // join.cc
  int meet_in_join(bool forward_reduces);
  void refuse_second_forward();
  void shadow_forward(const JoinRounds::Answer& answer);
  void shadow_backward();
  const char* obstacle_to_join() const;
  JoinResult shadow(const JoinOptions& join_options);
  void say_that_trial_rests();

  ReplicatedModel model;
  ProcessGroup group;
  const DdpOptions options;
  StepCheck steps;
  ReplicaWatch watch;
  ReplicaCheck replicas;
  std::optional<JoinRounds> join;    // inside join()
  std::optional<BucketTrial> trial;  // of bucket sizes
  bool trial_rests_said = false;     // on rank 0, once
  Clock::time_point backward_began;
  ComputeClock compute;
  std::optional<Span> waits_for_gradients;  // of other ranks, at a backward's end
  ReducerParts parts;
  BucketViews views;
  uint64_t buckets_made = 0;
  uint64_t reducers_made = 0;
  std::optional<Traffic> of_backward;  // once the buckets are known
  GradientHooks hooks;

  LiveReducer live;

  bool reduces = true;              // set by the user: false inside no_sync
  bool forward_reduces = false;     // a reduction follows the current forward
  bool synchronize_buffers = true;  // the last forward was a reduced one
  bool as_views = true;             // gradients are views of the Reducer's buckets

  std::mutex mutex;  // autograd's threads write the members below
  Expected expected = Expected::nothing;
  bool awaits_in_join = false;  // a forward of this join() has had no backward yet
  bool local_unseen = false;    // a local forward had no output that can be watched
  GradientArrivals arrivals;    // of the reduced backward
  std::weak_ptr<void> graph;    // the running one, with our callback, which keeps this object alive
  ParameterUses used_by_last;   // with find_unused_parameters: of several forwards, the last
  int graph_id = -1;            // autograd's number for it; those of backwards inside it are others
  bool begun = false;           // a reduced backward that has not ended well
  bool accumulated = false;     // gradients here that no reduction has made equal on all ranks
  LocalGradients local;         // the step that must not follow them
  bool local_step_said = false;  // once
  bool static_graph_seen = false;
  bool order_known = false;  // of the gradients: the Reducer makes new buckets
};

}  // namespace muster
