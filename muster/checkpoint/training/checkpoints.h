// Saves and restores everything that a training run needs to go on, each part under a name.
//
//   muster::Checkpoints checkpoints(ctx, {.every = 500, .resume = options.resume});
//   checkpoints.add("model", net).add("optimizer", optimizer).add("schedule", schedule).add("data",
//   loader); checkpoints.restore();  // does nothing in a new run for (const auto& batch :
//   loader.steps(10000)) {
//     …
//     if (batch.last && checkpoints.save_or_stop(loader.position().step)) return;  // SIGTERM, a
//     time limit
//   }
//
// The random generators of every rank are saved too. The file format is that of
// checkpoint/checkpoint.h.
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
#include "muster/checkpoint/training/data_positions.h"
#include "muster/checkpoint/training/learning_rates.h"
#include "muster/checkpoint/training/rank_states.h"
#include "muster/checkpoint/training/resumed_step.h"
#include "muster/checkpoint/training/saved_state.h"
#include "muster/checkpoint/training/stream_positions.h"
#include "muster/comm/process_group.h"
#include "muster/data/loader_options.h"
#include "muster/data/stream_position.h"

namespace muster {

class Hook;
struct KeptState;

struct CheckpointsOptions {
  std::string folder = {};  // default: `checkpoints` in the job's folder
  int64_t every = 0;        // steps between saves by save_when_due(); 0: none
  int keep_last = 3;        // remove older ones of this training, from any run; 0 keeps all
  bool resume = false;      // go on from the newest checkpoint
  // Go back to this checkpoint of the folder, such as "step-100". Later saves then count as newer
  // than the steps that were abandoned. Restarted ranks go on from what they have saved since.
  std::string resume_from = {};
  // Parts that a checkpoint may lack, since the program that saved it did not have them yet: they
  // keep the state that they have. Not for models and optimizers.
  std::vector<std::string> new_parts = {};
  // Parts of the checkpoint that this program does without, as of one that no longer averages its
  // weights.
  std::vector<std::string> leave_out = {};
  // Parts that begin anew although the checkpoint has them: they keep the state that they have.
  // Ranks that were restarted go on with all parts that they have saved. Not for models and
  // optimizers.
  std::vector<std::string> fresh = {};
  // Optimizers keep the learning rates that the program gave them, and schedules their initial
  // rates. If false, those of the checkpoint are taken, and rank 0 logs where they differ from the
  // program's.
  bool new_learning_rates = false;
  // save() only copies the state, and a thread writes it. The ranks that write (rank 0, or every
  // rank for a divided model) need memory for a second copy of what they write.
  bool background = false;
  // In-memory saves for `muster run --on-failure replace`: every rank keeps the state in its memory
  // after every n-th step seen by save_or_stop() or save_when_due(). Default: 1 under that option,
  // else 0 (never).
  std::optional<int64_t> in_memory = {};
  // The same for a model that is divided over ranks. Each rank keeps its own part and that of one
  // other rank, on another host if there is one, for two steps. Units: four times a rank's part in
  // memory, and once over the network at each kept step. If false, such a model goes on from disk.
  bool in_memory_of_neighbours = false;
  // The job, the launch of it, and how often its ranks were started before. Restarted ranks go on
  // from the launch's own newest checkpoint, whatever `resume` says. A muster::Context supplies all
  // three.
  std::string run_id = {};
  std::string launch = {};
  int attempt = 0;
  // Whether the ranks are to stop; all ranks call it together. Default: Context::should_stop.
  std::function<bool()> should_stop = {};
};

// A part with a state: Schedule, Plateau, Precision, Ema, TrainStep, or your own.
template <class Part>
concept HasState = requires(Part& part, const SavedState& state) {
  { part.state() } -> std::convertible_to<SavedState>;
  part.load_state(state);
};

// A part with large tensors of its own, as Ema: a saved state is read straight into them.
template <class Part>
concept HasOwnTensors = requires(Part& part) {
  { part.own_tensors() } -> std::convertible_to<NamedTensors>;
};

// A part whose own tensors may be divided over ranks as the model is, as Ema's: with a divided
// model they are saved in pieces, by the same names.
template <class Part>
concept HasPieces = HasOwnTensors<Part> && requires(const Part& part) {
  { part.pieces() } -> std::convertible_to<TensorPieces>;
};

// A DataLoader, or another object with a position in the data.
template <class Part>
concept HasDataPosition = requires(Part& part, const DataPosition& position) {
  { part.position() } -> std::convertible_to<DataPosition>;
  part.restore(position);
};

// A StreamLoader: every rank has its own position.
template <class Part>
concept HasStreamPosition = requires(Part& part, const std::vector<StreamPosition>& of_ranks) {
  { part.position() } -> std::convertible_to<StreamPosition>;
  part.restore(of_ranks);
};

// A part that knows, by the numbers that it has saved, whether it can be loaded: Precision of fp16
// needs the scale. Asked before anything is loaded.
template <class Part>
concept NeedsNumbers = requires(const Part& part) {
  { part.needed_numbers() } -> std::convertible_to<std::vector<std::string>>;
};

// Sets an optimizer's learning rates from initial ones: Schedule.
template <class Part>
concept HasInitialRates = requires(Part& part, const std::vector<double>& rates) {
  { part.initial_lrs() } -> std::convertible_to<std::vector<double>>;
  { part.optimizer() } -> std::convertible_to<torch::optim::Optimizer&>;
  part.set_initial_lrs(rates);
};

// Wants to know how the training begins: Metrics, whose file may have lines of steps that come
// again.
template <class Part>
concept HasBeginning = requires(Part& part) { part.begin(Beginning()); };

// An optimizer that delegates to another one for this rank's part: ShardedOptimizer.
template <class Optimizer>
concept HasPart = requires(Optimizer& optimizer) {
  { optimizer.part() } -> std::convertible_to<torch::optim::Optimizer&>;
  optimizer.options_to_part();
  optimizer.options_from_part();
};

class Checkpoints {
  enum class Place { of_training, of_data };  // go_back() does not rewind the data
  using ReadParts =
      std::function<NamedTensors(const std::string& prefix, const NamedTensors& into)>;

 public:
  // Throws: invalid_argument without a folder, and for a negative `every` or keep_last.
  Checkpoints(ProcessGroup group, CheckpointsOptions options);
  // Uses the group, the folder and the attempt of a muster::Context.
  template <class Context>
    requires requires(Context& ctx) { ctx.process_group(), ctx.run_dir(), ctx.env(); }
  explicit Checkpoints(Context& ctx, CheckpointsOptions options = {})
      : Checkpoints(ctx.process_group(), with_job(std::move(options), ctx)) {}

  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Adds a part to save; it must outlive this object. Several models and optimizers are fine. Pass
  // the modules themselves, not their wrappers. Throws: invalid_argument for a name that is taken
  // or contains
  // '/'.
  template <class Impl>
  Checkpoints& add(const std::string& name, const torch::nn::ModuleHolder<Impl>& model) {
    return add(name, std::shared_ptr<torch::nn::Module>(model.ptr()));
  }
  Checkpoints& add(const std::string& name, std::shared_ptr<torch::nn::Module> model);
  Checkpoints& add(const std::string& name, torch::optim::Optimizer& optimizer);
  // Adds a model that is divided over ranks, or an optimizer of such parameters, with the pieces
  // given by FullySharded::pieces, ShardedOptimizer::pieces, parallel_pieces or Pipeline::pieces.
  // Every rank writes its part into a folder that all ranks must see. It can restore checkpoints
  // saved whole or divided differently. Allows only one model and one optimizer.
  Checkpoints& add(const std::string& name, TensorPieces model);
  Checkpoints& add(const std::string& name,
                   torch::optim::Optimizer& optimizer,
                   TensorPieces parameters);
  template <HasPart Optimizer>
  Checkpoints& add(const std::string& name, Optimizer& optimizer, TensorPieces parameters) {
    before_save_ = [&optimizer] {
      optimizer.options_to_part();
    };
    after_load_ = [&optimizer] {
      optimizer.options_from_part();
    };
    delegating_ = &optimizer;
    return add(
        name, static_cast<torch::optim::Optimizer&>(optimizer.part()), std::move(parameters));
  }
  // Adds what a DistributedDataParallel hook remembers, on every rank. If the number of ranks
  // changes, errors still to be sent start anew.
  template <std::same_as<Hook> Part>  // not anything that converts to Hook: modules are callable
                                      // too
  Checkpoints& add(const std::string& name, const Part& hook) {
    return add_hook(name, hook);
  }
  // Saves rank 0's state, which every rank gets back; of Ema with a divided model, every rank's
  // pieces. For a state that differs between ranks see add_per_rank.
  template <HasState Part>
  Checkpoints& add(const std::string& name, Part& part) {
    add_part(
        name,
        [&part] { return part.state(); },
        [&part](const SavedState& state) { part.load_state(state); });
    if constexpr (HasOwnTensors<Part>)
      parts_.back().own_tensors = [&part] {
        return part.own_tensors();
      };
    if constexpr (HasPieces<Part>)
      parts_.back().pieces = [&part] {
        return part.pieces();
      };
    if constexpr (NeedsNumbers<Part>)
      parts_.back().needed = [&part] {
        return part.needed_numbers();
      };
    if constexpr (HasBeginning<Part>)
      parts_.back().begin = [&part](Beginning beginning) {
        part.begin(beginning);
      };
    if constexpr (HasInitialRates<Part>) {
      schedules_.push_back(
          {.name = name,
           .optimizer = &part.optimizer(),
           .get = [&part] { return part.initial_lrs(); },
           .set = [&part](const std::vector<double>& rates) { part.set_initial_lrs(rates); }});
    }
    return *this;
  }
  // Your own numbers, tensors and texts. restore() writes them into `values`.
  Checkpoints& add(const std::string& name, SavedState& values) {
    return add_part(
        name, [&values] { return values; }, [&values](const SavedState& state) { values = state; });
  }
  // A part whose state differs between ranks. Every rank's is saved, and all ranks hold all of them
  // while saving, so they should be small. restore() throws failed_precondition for another number
  // of ranks.
  template <HasState Part>
  Checkpoints& add_per_rank(const std::string& name, Part& part) {
    return add_part(
        name,
        [this, &part] { return states_of_ranks(group_, part.state()); },
        [this, &part, name](const SavedState& state) {
          part.load_state(own_state(group_, name, state));
        });
  }
  template <HasDataPosition Part>
  Checkpoints& add(const std::string& name, Part& part) {
    if (!position_)
      position_ = [&part](int64_t step) {
        return training_position(step, part.position());
      };
    return add_part(
        name,
        [&part] { return state_of(part.position()); },
        [&part, name](const SavedState& state) { part.restore(data_position_of(name, state)); },
        Place::of_data);
  }
  // Saves the positions of all ranks. With other numbers of ranks or workers, restore() divides
  // what was left of the epoch over them. It throws failed_precondition for another seed.
  template <HasStreamPosition Part>
  Checkpoints& add(const std::string& name, Part& part) {
    const auto place = std::make_shared<TrainingPosition>();  // as saved last
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
        [&part, name](const SavedState& state) { part.restore(positions_of_ranks(name, state)); },
        Place::of_data);
  }

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
  const std::string& path() const { return path_; }

  // Saves the state after `step` steps and returns the checkpoint's path.
  // Collective: yes.
  // Blocking: with `background`, until the previous checkpoint is written.
  // Throws: as save_checkpoint, and whatever writing the previous checkpoint threw.
  std::string save(int64_t step);
  // Waits until `background` has written everything. The destructor waits too, and logs failures.
  // Collective: yes.
  // Throws: on every rank, what the writing threw.
  void finish();
  // Saves at every `every`-th step; returns an empty path at others.
  std::string save_when_due(int64_t step);
  // Call it after every step. It saves like save_when_due(). If the job is asked to stop (by
  // SIGTERM, SIGUSR1, Ctrl-C or a time limit), it saves and returns true, on all ranks after the
  // same step: then return from the training. Collective: yes. Throws: as save().
  bool save_or_stop(int64_t step);

 private:
  struct Part {
    std::string name;
    Place place;
    std::function<SavedState()> state;
    std::function<void(const SavedState&)> load;
    std::function<NamedTensors()> own_tensors = {};  // none for most
    std::function<TensorPieces()> pieces = {};       // none for most
    std::function<std::vector<std::string>()> needed = {};
    std::function<void(Beginning)> begin = {};
  };

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
  TrainingPosition position_after(int64_t step) const {
    return position_ ? position_(step) : TrainingPosition{.step = step};
  }

  Checkpoints& add_hook(const std::string& name, const Hook& hook);
  Checkpoints& add_part(const std::string& name,
                        std::function<SavedState()> state,
                        std::function<void(const SavedState&)> load,
                        Place place = Place::of_training);
  void check_name(const std::string& name) const;
  std::string name_of(const at::Tensor& parameter) const;
  void join_models();
  TrainingState training_state();
  NamedTensors saved_parts();
  std::vector<ShardedState::Part> parts_in_pieces(const TensorPieces& model,
                                                  bool may_begin_anew) const;
  void check_parts_are_whole() const;
  bool is_divided() const { return !divided_models_.empty() || divided_parameters_.has_value(); }
  ShardedState sharded_state(bool may_begin_anew = false);
  bool finds_sharded(const LoadOptions& load) const;
  std::optional<LoadedCheckpoint> load_latest(const LoadOptions& load, bool may_begin_anew);
  std::optional<LoadedCheckpoint> load_earlier(int64_t latest);
  bool is_of_this_launch(const Manifest& manifest) const;
  std::optional<LoadedCheckpoint> load_of_this_launch();
  std::optional<LoadedCheckpoint> load_where_asked();
  void check_parts(const TensorEntries& saved, bool may_begin_anew) const;
  void check_needed_numbers(const TensorEntries& saved, bool may_begin_anew) const;
  bool is_added(const std::string& name) const;
  bool is_fresh(const std::string& name) const;
  void check_named_parts() const;
  bool keeps_its_state(const Part& part, const ReadParts& read, bool may_begin_anew) const;
  void load_parts(const ReadParts& read, Place place, bool may_begin_anew);
  bool load_saved();
  void take_new_rates();
  void apply_schedules() const;
  void begin_parts(Beginning beginning);
  std::vector<LearningRates> learning_rates() const;
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
  std::string begun_by_;  // the run that started the training
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> models_;
  std::vector<std::pair<std::string, torch::optim::Optimizer*>> optimizers_;
  std::vector<Part> parts_;
  std::shared_ptr<torch::nn::Module> joined_;  // the model, or one that holds them all
  std::vector<std::pair<std::string, TensorPieces>> divided_models_;
  std::optional<TensorPieces> divided_parameters_;       // of the optimizer
  std::function<void()> before_save_, after_load_;       // of that optimizer; usually none
  const torch::optim::Optimizer* delegating_ = nullptr;  // the optimizer that has it as its part
  std::vector<LearningRates> schedules_;
  std::function<TrainingPosition(int64_t step)> position_;  // by the first loader; none: unknown
  int64_t step_ = 0;
  std::vector<SerialRange> abandoned_;  // Manifest::abandoned of the next checkpoint
  int64_t last_step_ = 0;               // last step passed to save() and the like
  int64_t goings_back_ = 0;
  int64_t begun_anew_at_ = -1;  // Manifest::serial of the checkpoint that fresh parts did not take
  std::optional<ProgramsRates> new_rates_;  // taken in its place
  std::string path_;
  bool told_of_divided_ = false;
  BackgroundSave writer_;
  ShardedSave sharded_writer_;
};

}  // namespace muster
