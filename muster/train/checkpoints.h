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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/background_save.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/sharded_save.h"
#include "muster/comm/process_group.h"
#include "muster/data/loader_options.h"
#include "muster/data/stream_position.h"
#include "muster/train/data_positions.h"
#include "muster/train/saved_state.h"
#include "muster/train/stream_positions.h"

namespace muster {

class Hook;
struct KeptState;

struct CheckpointsOptions {
  std::string folder = {};  // default: `checkpoints` in the job's folder
  int64_t every = 0;        // steps between those that save_when_due() saves; 0: none
  int keep_last = 3;        // older ones of this training are removed, in whatever run; 0 keeps all
  bool resume = false;      // go on from the one that was saved last
  // Go back to this one of the folder, "step-100"; what is saved then counts as newer than the later steps
  // that are left so. Ranks that were started again go on from what they have saved since.
  std::string resume_from = {};
  // save() copies what is to be saved, and a thread writes it: who writes (rank 0; of models that are divided
  // over ranks, each its part) needs that memory twice.
  bool background = false;
  // After every how many of the steps that save_or_stop() and save_when_due() see each rank keeps the state
  // in its memory, for `muster run --on-failure replace`. Default: 1 there, 0 (never) elsewhere.
  std::optional<int64_t> in_memory = {};
  // The same of a model that is divided over ranks: each rank keeps its part and that of one other, on
  // another host where there is one, of two steps. Units: four times a rank's part in memory, and once over
  // the network at each step that is kept. Without, such a model goes on from the disk.
  bool in_memory_of_neighbours = false;
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

// An optimizer whose steps another one takes on this rank's part: ShardedOptimizer.
template <class Optimizer>
concept HasPart = requires(Optimizer& optimizer) {
  { optimizer.part() } -> std::convertible_to<torch::optim::Optimizer&>;
  optimizer.options_to_part();
  optimizer.options_from_part();
};

class Checkpoints {
  enum class Place { of_training, of_data };  // go_back() leaves the data where they are

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
  // A model that is divided over ranks, and an optimizer of such parameters: as FullySharded::pieces,
  // ShardedOptimizer::pieces, parallel_pieces and Pipeline::pieces give them. Every rank writes a part, into
  // a folder that all must see. Restores what was saved whole, or divided otherwise. One model and one
  // optimizer at most then.
  Checkpoints& add(const std::string& name, TensorPieces model);
  Checkpoints& add(const std::string& name, torch::optim::Optimizer& optimizer, TensorPieces parameters);
  template <HasPart Optimizer>
  Checkpoints& add(const std::string& name, Optimizer& optimizer, TensorPieces parameters) {
    before_save_ = [&optimizer] { optimizer.options_to_part(); };
    after_load_ = [&optimizer] { optimizer.options_from_part(); };
    return add(name, static_cast<torch::optim::Optimizer&>(optimizer.part()), std::move(parameters));
  }
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
    if (!position_) position_ = [&part](int64_t step) { return training_position(step, part.position()); };
    return add_part(
        name, [&part] { return state_of(part.position()); },
        [&part, name](const SavedState& state) { part.restore(data_position_of(name, state)); },
        Place::of_data);
  }
  // The positions of all ranks are saved. restore() then throws failed_precondition for another number of
  // ranks, of workers, or another batch size or seed: the stream's parts would be others.
  template <HasStreamPosition Part>
  Checkpoints& add(const std::string& name, Part& part) {
    const auto place = std::make_shared<TrainingPosition>();  // as it was saved last
    if (!position_) {
      position_ = [place](int64_t step) {
        place->step = step;
        return *place;
      };
    }
    return add_part(
        name,
        [this, &part, place] {
          SavedState state = stream_positions(group_, part.position());
          *place = place_in_streams(state);
          return state;
        },
        [this, &part, name](const SavedState& state) {
          part.restore(own_stream_position(group_, name, state));
        },
        Place::of_data);
  }

  // Loads the newest checkpoint that is whole, where the run goes on: with `resume`, and in ranks that were
  // started again; says which, on rank 0. Where ranks were replaced in place, it loads the newest state that
  // any rank has in its memory. False where there is nothing to go on from. Collective: yes. Throws: as
  // load_latest_checkpoint, and invalid_argument for parts that the checkpoint lacks.
  bool restore();

  // Brings the last saved state back that is at least `steps` older than the last step that was saved or
  // asked about, but for the data, which go on: what made the training fail is not met again. For
  // TrainStepOptions::go_back. Returns the step of that state. Collective: yes. Blocking: until a background
  // save is written. Throws: as restore(); failed_precondition where nothing so old is there.
  int64_t go_back(int64_t steps);

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
    Place place;
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
  TrainingPosition position_after(int64_t step) const {
    return position_ ? position_(step) : TrainingPosition{.step = step};
  }

  Checkpoints& add_hook(const std::string& name, const Hook& hook);
  Checkpoints& add_part(const std::string& name, std::function<SavedState()> state,
                        std::function<void(const SavedState&)> load, Place place = Place::of_training);
  void check_name(const std::string& name) const;
  void join_models();
  TrainingState training_state();
  NamedTensors saved_parts();
  bool is_divided() const { return !divided_models_.empty() || divided_parameters_.has_value(); }
  ShardedState sharded_state();
  bool finds_sharded(const LoadOptions& load) const;
  std::optional<LoadedCheckpoint> load_latest(const LoadOptions& load);
  std::optional<LoadedCheckpoint> load_where_asked();
  void check_parts(const TensorEntries& saved) const;
  void load_parts(const NamedTensors& saved, Place place);
  void begin_branch(const LoadedCheckpoint& loaded);

  // checkpoints_in_memory.cc
  int64_t steps_between_kept() const;
  void keep(int64_t step);
  bool restore_from_memory();
  bool restore_whole_from_memory();
  void take_over(const KeptState& state);
  // checkpoints_divided_in_memory.cc
  void keep_divided(int64_t step);
  bool restore_divided_from_memory();
  void tell_of_divided();

  ProcessGroup group_;
  CheckpointsOptions options_;
  std::string begun_by_;  // the run that the training began in
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> models_;
  std::vector<std::pair<std::string, torch::optim::Optimizer*>> optimizers_;
  std::vector<Part> parts_;
  std::shared_ptr<torch::nn::Module> joined_;  // the model, or one that holds them all
  std::vector<std::pair<std::string, TensorPieces>> divided_models_;
  std::optional<TensorPieces> divided_parameters_;          // of the optimizer
  std::function<void()> before_save_, after_load_;          // of that optimizer; none for most
  std::function<TrainingPosition(int64_t step)> position_;  // by the first loader; none: nobody knows
  int64_t step_ = 0;
  int64_t branch_from_ = 0, branch_until_ = 0;  // serial numbers between which checkpoints were left
  int64_t last_step_ = 0;                       // that save() or its like was given
  int64_t goings_back_ = 0;
  std::string path_;
  bool told_of_divided_ = false;
  BackgroundSave writer_;
  ShardedSave sharded_writer_;
};

}  // namespace muster
