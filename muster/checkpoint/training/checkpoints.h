// Saves and restores everything that a training run needs to go on, each part under a name.
//
//   muster::Checkpoints checkpoints(ctx, {.every = 500, .resume = options.resume});
//   checkpoints.add("model", net).add("optimizer", optimizer).add("schedule", schedule);
//   checkpoints.add("data", loader);
//   checkpoints.restore();  // does nothing in a new run
//   for (const auto& batch : loader.steps(10000)) {
//     …
//     // At SIGTERM or a time limit:
//     if (batch.last && checkpoints.save_or_stop(loader.position().step)) return;
//   }
//
// The random generators of every rank are saved too. The file format is that of
// checkpoint/checkpoint.h.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "muster/base/never.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/checkpoint/training/checkpoints_options.h"
#include "muster/checkpoint/training/delegating_optimizer.h"
#include "muster/checkpoint/training/part.h"
#include "muster/comm/process_group.h"

namespace muster {

// What Checkpoints::add takes, as a variable of the program's.
template <class Object>
concept IsSaved =
    std::is_lvalue_reference_v<Object> &&
    (IsPart<std::remove_reference_t<Object>> || HasLoaders<std::remove_reference_t<Object>> ||
     std::convertible_to<Object, torch::optim::Optimizer&>);

// Of a model or a hook, which it shares, a temporary will do.
template <class Object>
concept CanBeAdded = IsSaved<Object> || std::same_as<std::remove_cvref_t<Object>, Hook> ||
                     std::convertible_to<Object, std::shared_ptr<torch::nn::Module>> ||
                     std::convertible_to<Object, TensorPieces> || requires(const Object& holder) {
                       { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
                     };

class BestMetric;
class FolderLock;
struct KeptState;
struct LoadedCheckpoint;
class Training;
struct TrainingBranch;
class TrainingStore;

// The best checkpoint of a training.
struct BestSaved {
  std::string path;  // on rank 0's host
  int64_t step = 0;
  double value = 0;
};

class Checkpoints {
 public:
  // Throws: invalid_argument without a folder, and for a negative `every`, every_time, keep_last,
  // patience or min_delta.
  Checkpoints(ProcessGroup group, CheckpointsOptions options);
  // Uses the group, the folder and the attempt of a muster::Context.
  template <class Context>
    requires requires(Context& ctx) { ctx.process_group(), ctx.run_dir(), ctx.env(); }
  explicit Checkpoints(Context& ctx, CheckpointsOptions options = {})
      : Checkpoints(ctx.process_group(), with_job(std::move(options), ctx)) {}
  // Waits for what `background` still writes; logs failures.
  ~Checkpoints();

  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Each add() adds something to save; it must outlive this object. Several models and optimizers
  // are fine. Pass the modules themselves, not their wrappers. Throws: invalid_argument for a name
  // that is taken or contains '/'.
  template <class Impl>
  Checkpoints& add(const std::string& name, const torch::nn::ModuleHolder<Impl>& model) {
    return add(name, std::shared_ptr<torch::nn::Module>(model.ptr()));
  }
  Checkpoints& add(const std::string& name, std::shared_ptr<torch::nn::Module> model);
  Checkpoints& add(const std::string& name, torch::optim::Optimizer& optimizer);
  // Adds a model that is sharded over ranks, or an optimizer of such parameters, with the pieces
  // given by FullySharded::pieces, ShardedOptimizer::pieces, parallel_pieces or Pipeline::pieces.
  // Every rank writes its part into a folder that all ranks must see. It can restore checkpoints
  // saved whole or sharded differently. Allows only one model and one optimizer.
  Checkpoints& add(const std::string& name, TensorPieces model);
  Checkpoints& add(const std::string& name,
                   torch::optim::Optimizer& optimizer,
                   TensorPieces parameters);
  template <HasPart Optimizer>
  Checkpoints& add(const std::string& name, Optimizer& optimizer, TensorPieces parameters) {
    delegate({.outer = &optimizer,
              .options_to_part = [&optimizer] { optimizer.options_to_part(); },
              .options_from_part = [&optimizer] { optimizer.options_from_part(); }});
    torch::optim::Optimizer& part = optimizer.part();
    return add(name, part, std::move(parameters));
  }
  // An optimizer of a class that a program derives from torch::optim's or muster::optim's: the
  // members that its state() gives are saved too, as <name>_own.
  template <HasState Optimizer>
    requires std::derived_from<Optimizer, torch::optim::Optimizer>
  Checkpoints& add(const std::string& name, Optimizer& optimizer, TensorPieces parameters) {
    const std::string members = add_base(name, optimizer);
    shard_optimizer(std::move(parameters));
    add_part(std::make_unique<PartOf<Optimizer>>(members, group(), optimizer), &optimizer);
    return *this;
  }
  // Adds an object with a state, a loader, or your own numbers, tensors and texts, into which
  // restore() writes them. Rank 0's state is saved, which every rank gets back; but every rank's
  // pieces of Ema with a sharded model, and every rank's position in a stream. For another state
  // that differs between ranks see add_per_rank. A StreamLoader's restore() throws
  // failed_precondition for another seed.
  template <IsPart Object>
  Checkpoints& add(const std::string& name, Object& object) {
    std::string part = name;
    if constexpr (std::derived_from<Object, torch::optim::Optimizer>) {
      if (has_saved_kind(object))
        part = add_base(name, object);
    }
    add_part(std::make_unique<PartOf<Object>>(part, group(), object), &object);
    return *this;
  }
  // Adds each of several loaders that are read together (ZipLoaders), as <name>_0, <name>_1, …
  template <HasLoaders Object>
  Checkpoints& add(const std::string& name, Object& object) {
    std::apply(
        [&](auto&... loader) {
          int number = 0;
          (add(name + "_" + std::to_string(number++), loader), ...);
        },
        object.loaders());
    return *this;
  }
  // Adds what a DistributedDataParallel hook remembers, on every rank. If the number of ranks
  // changes, errors still to be sent start anew. Not for anything that converts to Hook: modules
  // are callable too.
  template <std::same_as<Hook> Object>
  Checkpoints& add(const std::string& name, const Object& hook) {
    return add_part(hook_part(name, group(), hook), &hook);
  }
  // What cannot be added: the text is the compiler's whole answer.
  template <class Object>
    requires(!CanBeAdded<Object>)
  Checkpoints& add(const std::string& /*name*/, Object&& /*object*/) {
    static_assert(
        kNever<Object>,
        "Checkpoints::add takes a variable that outlives it: a model (the module itself, "
        "not its wrapper), an optimizer, a loader, ZipLoaders, a muster::SavedState, or an "
        "object with state() and load_state() (HasState)");
    return *this;
  }

  // A part whose state differs between ranks. Every rank's is saved, and all ranks hold all of them
  // while saving, so they should be small. restore() throws failed_precondition for another number
  // of ranks.
  template <HasState Object>
  Checkpoints& add_per_rank(const std::string& name, Object& object) {
    return add_part(std::make_unique<PartOfFunctions>(
                        name,
                        [this, &object] { return states_of_ranks(group(), object.state()); },
                        [this, &object, name](const SavedState& state) {
                          object.load_state(own_state(group(), name, state));
                        }),
                    &object);
  }
  template <class Object>
    requires(!HasState<Object>)
  Checkpoints& add_per_rank(const std::string& /*name*/, Object& /*object*/) {
    static_assert(kNever<Object>,
                  "Checkpoints::add_per_rank takes an object with state() and load_state() "
                  "(HasState), which return and take a muster::SavedState");
    return *this;
  }

  // Takes the folder if `every` or `every_time` is set; otherwise the first call that saves or may
  // save takes it, and a job that only loads never does. One job at a time has a folder: another
  // gets failed_precondition, which names the first, within some seconds. Whatever is called first
  // refuses what a save would: invalid_argument for an optimizer with parameters that no model
  // names, and for tensors of a kind that no file can have.
  //
  // Loads the newest complete checkpoint, if `resume` is set or the ranks were restarted; rank 0
  // logs which. After ranks were replaced in place, it loads the newest state that any rank has in
  // memory. Returns false if there is nothing to go on from. Collective: yes. Throws: as
  // load_latest_checkpoint; invalid_argument for parts missing in the checkpoint, unless they are
  // `new_parts`.
  bool restore();

  // Restores the last saved state that is at least `steps` older than the last step saved or asked
  // about. The data go on, so that the samples that made the training fail do not come again. For
  // TrainStepOptions::go_back. Returns the step of the restored state.
  // Collective: yes.
  // Blocking: until a background save is written.
  // Throws: as restore(); failed_precondition if no saved state is old enough.
  int64_t go_back(int64_t steps);

  // The step of the restored state; 0 if nothing was restored.
  int64_t step() const { return step_; }
  // The checkpoint restored or saved last; empty if none.
  const std::string& path() const;

  // Saves the state after `step` steps and returns the checkpoint's path.
  // Collective: yes.
  // Blocking: with `background`, until the previous checkpoint is written.
  // Throws: as save_checkpoint, and whatever writing the previous checkpoint threw.
  std::string save(int64_t step);
  // Compares `value`, the metric after `step` steps, with those before, and saves if it is the best
  // so far; returns whether it is. Rank 0's value counts. One that is not finite is never the best.
  // A later save of the same step says the value too. Collective: yes. Throws: as
  // save(); failed_precondition without CheckpointsOptions::best.
  bool save_if_best(int64_t step, double value);
  // Saves in any case, and says the value in the manifest. Returns the checkpoint's path. Throws:
  // as save_if_best().
  std::string save(int64_t step, double value);
  // Whether so many values in a row were not better (BestOptions::patience). The same on all ranks.
  bool stops_early() const;
  // The best of the training so far, with what earlier runs of it have saved. Load its weights by
  // load_weights(*net, checkpoints.best()->path, …). Nothing: there was no finite value. With
  // `background`, the checkpoint may still be being written: finish() comes first.
  std::optional<BestSaved> best() const;

  // Waits until `background` has written everything. The destructor waits too, and logs failures.
  // Collective: yes.
  // Throws: on every rank, what the writing threw.
  void finish();
  // Saves at every `every`-th step, and when `every_time` has passed since the last save; returns
  // an empty path at other steps.
  std::string save_when_due(int64_t step);
  // Call it after every step, not after each batch of a step of several: rank 0 warns of a save
  // within a step of the first DataLoader that was added. It saves like save_when_due(). If the job
  // is asked to stop (by SIGTERM, SIGUSR1, Ctrl-C or a time limit), it saves and returns true, on
  // all ranks after the same step: then return from the training. Collective: yes. Throws: as
  // save().
  bool save_or_stop(int64_t step);

  class StepIterator {
   public:
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;

    int64_t operator*() const { return step_; }
    StepIterator& operator++() {
      stops_ = of_->save_or_stop(step_++);
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return stops_ || step_ > until_; }

   private:
    friend class Checkpoints;
    StepIterator(Checkpoints& of, int64_t until)
        : of_(&of), step_(of.last_step_ + 1), until_(until) {}

    Checkpoints* of_;
    int64_t step_;
    int64_t until_;
    bool stops_ = false;
  };

  // The numbers of the steps of a training without a loader, as of reinforcement learning: from the
  // one after the last step, taken here or restored, to `until`. Each step ends with
  // save_or_stop(). If the job is to stop, the loop is over early, and Context::stops() is true.
  auto steps(int64_t until) & {
    struct Steps {
      Checkpoints& of;
      int64_t until;
      StepIterator begin() const {
        of.take_folder();
        return {of, until};
      }
      std::default_sentinel_t end() const { return {}; }
    };
    return Steps{*this, until};
  }

 private:
  template <class Context>
  static CheckpointsOptions with_job(CheckpointsOptions options, Context& ctx) {
    if (options.folder.empty() && !ctx.run_dir().empty())
      options.folder = ctx.run_dir() + "/checkpoints";
    if (options.run_id.empty())
      options.run_id = ctx.env().run_id;
    if (options.launch.empty())
      options.launch = ctx.env().launch;
    options.attempt = ctx.env().attempt;
    if (!options.should_stop)
      options.should_stop = [&ctx] {
        return ctx.should_stop();
      };
    return options;
  }

  ProcessGroup& group();
  TrainingStore& store();
  Checkpoints& add_part(std::unique_ptr<TrainingPart> part, const void* object);
  void delegate(DelegatingOptimizer optimizer);
  // Adds what an optimizer has of its class's base. Returns the name of the part for its members.
  std::string add_base(const std::string& name, torch::optim::Optimizer& optimizer);
  void shard_optimizer(TensorPieces parameters);

  void check_savable();
  void take_folder();
  void warn_of_other_saver();
  void note_resumed(bool is_found);
  BestMetric& metric();
  bool take_value(int64_t step, double value);
  std::string best_path() const;
  // `before`: what best_ was before this save's value; null without CheckpointsOptions::best.
  std::string save_from(int64_t step, const BestMetric* before);
  void finish_write();
  std::string write(int64_t step);
  void warn_within_step(int64_t step);
  bool is_due(int64_t step);
  int64_t steps_between_kept() const;
  void keep(int64_t step);
  bool restore_kept();
  bool load_saved();
  bool is_of_this_launch(const Manifest& manifest) const;
  std::optional<LoadedCheckpoint> load_of_this_launch();
  std::optional<LoadedCheckpoint> load_where_asked();
  std::optional<LoadedCheckpoint> load_earlier(int64_t latest);
  void take_new_rates();
  void begin_branch(const LoadedCheckpoint& loaded);

  std::unique_ptr<Training> training_;
  std::shared_ptr<const FolderLock>
      folder_lock_;  // on rank 0; outlives what the stores still write
  bool has_folder_ = false;
  bool has_warned_within_step_ = false;
  std::unique_ptr<TrainingStore> whole_store_, sharded_store_;
  std::unique_ptr<TrainingBranch> branch_;
  std::unique_ptr<BestMetric> best_;  // null without CheckpointsOptions::best
  // What best_ is again if what is being written in the background fails.
  std::unique_ptr<BestMetric> best_before_write_;
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  int64_t step_ = 0;
  int64_t last_step_ = 0;       // the last step passed to save() and the like
  int64_t begun_anew_at_ = -1;  // Manifest::serial of the checkpoint that fresh parts did not take
  std::optional<ProgramsRates> new_rates_;  // taken in its place
};

}  // namespace muster
