// All that a training run must have back, under one name each, saved and restored together.
//
//   muster::Checkpoints checkpoints(ctx, {.every = 500, .resume = options.resume});
//   checkpoints.add("model", net).add("optimizer", optimizer).add("schedule", schedule).add("data", loader);
//   checkpoints.restore();                                // nothing for a run that begins
//   for (const auto& batch : loader.steps(10000)) {
//     …
//     if (batch.last && checkpoints.save_or_stop(loader.position().step)) return;  // SIGTERM, a time limit
//   }
//
// The random generators of every rank are saved too. Files are those of checkpoint/checkpoint.h.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/background_save.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/comm/process_group.h"
#include "muster/data/loader_options.h"
#include "muster/data/stream_position.h"
#include "muster/train/saved_state.h"
#include "muster/train/stream_positions.h"

namespace muster {

class Hook;

struct CheckpointsOptions {
  std::string folder = {};  // default: `checkpoints` in the job's folder
  int64_t every = 0;        // steps between those that save_when_due() saves; 0: none
  int keep_last = 3;        // older ones of this training are removed, in whatever run; 0 keeps all
  bool resume = false;      // go on from the newest there is
  // save() copies what is to be saved, and a thread writes it: rank 0 needs the memory twice.
  bool background = false;
  // Which job this is, and how often its ranks were started before: ranks that were started again go on from
  // the job's own newest checkpoint, whatever `resume` says. A muster::Context knows both.
  std::string run_id = {};
  int attempt = 0;
  // Whether the ranks are to stop, asked by all of them together. Default: Context::should_stop.
  std::function<bool()> should_stop = {};
};

// A part that has a state: Schedule, Plateau, Precision, Ema, TrainStep, or one of yours.
template <class Part>
concept HasState = requires(Part& part, const SavedState& state) {
  { part.state() } -> std::convertible_to<SavedState>;
  part.load_state(state);
};

// A DataLoader, or what knows its place in the data otherwise.
template <class Part>
concept HasDataPosition = requires(Part& part, const DataPosition& position) {
  { part.position() } -> std::convertible_to<DataPosition>;
  part.restore(position);
};

// A StreamLoader: every rank has a place of its own.
template <class Part>
concept HasStreamPosition = requires(Part& part, const StreamPosition& position) {
  { part.position() } -> std::convertible_to<StreamPosition>;
  part.restore(position);
};

class Checkpoints {
 public:
  // Throws: invalid_argument without a folder, and for an `every` or keep_last below 0.
  Checkpoints(ProcessGroup group, CheckpointsOptions options);
  // The group, the folder and the attempt of a muster::Context.
  template <class Context>
  requires requires(Context& ctx) { ctx.process_group(), ctx.run_dir(), ctx.env(); }
  explicit Checkpoints(Context& ctx, CheckpointsOptions options = {})
      : Checkpoints(ctx.process_group(), with_job(std::move(options), ctx)) {}

  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // What is saved; all of it must outlive this object. Several models and optimizers are fine. Give bare
  // modules, not wrapped ones. Throws: invalid_argument for a name that is there already, or holds '/'.
  template <class Impl>
  Checkpoints& add(const std::string& name, const torch::nn::ModuleHolder<Impl>& model) {
    return add(name, std::shared_ptr<torch::nn::Module>(model.ptr()));
  }
  Checkpoints& add(const std::string& name, std::shared_ptr<torch::nn::Module> model);
  Checkpoints& add(const std::string& name, torch::optim::Optimizer& optimizer);
  // What a hook of DistributedDataParallel's remembers, of every rank. With another number of ranks errors
  // that were still to be sent begin anew.
  template <std::same_as<Hook> Part>  // nothing that converts to one: modules can be called, as hooks can
  Checkpoints& add(const std::string& name, const Part& hook) {
    return add_hook(name, hook);
  }
  template <HasState Part>
  Checkpoints& add(const std::string& name, Part& part) {
    return add_part(
        name, [&part] { return part.state(); }, [&part](const SavedState& state) { part.load_state(state); });
  }
  template <HasDataPosition Part>
  Checkpoints& add(const std::string& name, Part& part) {
    return add_part(
        name, [&part] { return state_of(part.position()); },
        [&part, name](const SavedState& state) { part.restore(position_of(name, state)); });
  }
  // The positions of all ranks are saved. restore() then throws failed_precondition for another number of
  // ranks, of workers, or another batch size or seed: the stream's parts would be others.
  template <HasStreamPosition Part>
  Checkpoints& add(const std::string& name, Part& part) {
    return add_part(
        name, [this, &part] { return stream_positions(group_, part.position()); },
        [this, &part, name](const SavedState& state) {
          part.restore(own_stream_position(group_, name, state));
        });
  }

  // Loads the newest checkpoint that is whole, where the run goes on: with `resume`, and in ranks that were
  // started again; says which, on rank 0. False where there is nothing to go on from. Collective: yes.
  // Throws: as load_latest_checkpoint, and invalid_argument for parts that the checkpoint lacks.
  bool restore();

  // Steps done in what was restored; 0 otherwise.
  int64_t step() const { return step_; }
  // Of the checkpoint that was restored or saved last; empty without.
  const std::string& path() const { return path_; }

  // Saves after `step` steps, and returns the checkpoint's path. Collective: yes. Blocking: with `background`
  // until the one before is written. Throws: as save_checkpoint, and what the writing of the one before
  // threw.
  std::string save(int64_t step);
  // Blocking: until what `background` has left to write is written. The destructor waits too, and logs what
  // fails. Collective: yes. Throws: what the writing threw, on every rank.
  void finish();
  // In every `every`-th step. Empty where it is not due.
  std::string save_when_due(int64_t step);
  // The same. And where the job is asked to stop (by SIGTERM, SIGUSR1, Ctrl-C or a time limit), saves, and
  // returns true, on all ranks after the same step: then return from the training. To be called after every
  // step. Collective: yes. Throws: as save().
  bool save_or_stop(int64_t step);

 private:
  struct Part {
    std::string name;
    std::function<SavedState()> state;
    std::function<void(const SavedState&)> load;
  };

  template <class Context>
  static CheckpointsOptions with_job(CheckpointsOptions options, Context& ctx) {
    if (options.folder.empty() && !ctx.run_dir().empty()) options.folder = ctx.run_dir() + "/checkpoints";
    if (options.run_id.empty()) options.run_id = ctx.env().run_id;
    options.attempt = ctx.env().attempt;
    if (!options.should_stop) options.should_stop = [&ctx] { return ctx.should_stop(); };
    return options;
  }
  static SavedState state_of(const DataPosition& position);
  static DataPosition position_of(const std::string& name, const SavedState& state);

  Checkpoints& add_hook(const std::string& name, const Hook& hook);
  Checkpoints& add_part(const std::string& name, std::function<SavedState()> state,
                        std::function<void(const SavedState&)> load);
  void check_name(const std::string& name) const;
  void join_models();
  TrainingState training_state();
  void check_parts(const TensorEntries& saved) const;

  ProcessGroup group_;
  CheckpointsOptions options_;
  std::string begun_by_;  // the run that the training began in
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> models_;
  std::vector<std::pair<std::string, torch::optim::Optimizer*>> optimizers_;
  std::vector<Part> parts_;
  std::shared_ptr<torch::nn::Module> joined_;  // the model, or one that holds them all
  int64_t step_ = 0;
  std::string path_;
  BackgroundSave writer_;
};

}  // namespace muster
