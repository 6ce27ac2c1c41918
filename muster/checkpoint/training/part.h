// The parts of a training that Checkpoints saves beside models and optimizers: one interface, and
// an adapter for every kind of object that can be added. A kind is a concept, such as HasState; an
// object that fits it needs to know nothing of checkpoints.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/checkpoint/training/data_positions.h"
#include "muster/checkpoint/training/learning_rates.h"
#include "muster/checkpoint/training/rank_states.h"
#include "muster/checkpoint/training/resumed_training.h"
#include "muster/checkpoint/training/stream_positions.h"
#include "muster/comm/process_group.h"
#include "muster/data/loader_options.h"
#include "muster/data/stream_position.h"

namespace muster {

class Hook;

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

// A part whose own tensors may be sharded over ranks as the model is, as Ema's: with a sharded
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

// How many samples a step of a loader has that knows it, asked for once: an epoch of some loaders
// is costly to cut.
template <class Part>
class GlobalBatchOf {
 public:
  GlobalBatchOf(ProcessGroup& group, const Part& loader) : group_(group), loader_(loader) {}

  void add_to(SavedState* state) {
    if constexpr (kIsKnown)
      add_global_batch(now(), state);
  }
  // Rank 0 speaks for all.
  void tell_if_other(const std::string& owner, const SavedState& saved) {
    if constexpr (kIsKnown) {
      if (group_.rank() == 0)
        tell_other_global_batch(owner, saved, now());
    }
  }

 private:
  static constexpr bool kIsKnown = requires(const Part& part) { part.global_batch(); };

  GlobalBatch now() {
    if (now_.ranks == 0)
      now_ = {.samples = loader_.global_batch(), .ranks = group_.size()};
    return now_;
  }

  ProcessGroup& group_;
  const Part& loader_;
  GlobalBatch now_;
};

// A StreamLoader: every rank has its own position.
template <class Part>
concept HasStreamPosition = requires(Part& part, const StreamPositions& of_ranks) {
  { part.position() } -> std::convertible_to<StreamPosition>;
  part.restore(of_ranks);
};

// Several loaders that are read together: ZipLoaders.
template <class Object>
concept HasLoaders = requires(const Object& object) {
  std::tuple_size<std::remove_cvref_t<decltype(object.loaders())>>::value;
};

// An object that PartOf adapts.
template <class Object>
concept IsPart = HasState<Object> || HasDataPosition<Object> || HasStreamPosition<Object> ||
                 std::same_as<Object, SavedState>;

// Checkpoints::go_back() rewinds the training and leaves the data where they are.
enum class PartPlace { of_training, of_data };

class TrainingPart : NoCopy {
 public:
  explicit TrainingPart(std::string name) : name_(std::move(name)) {}
  virtual ~TrainingPart() = default;

  const std::string& name() const { return name_; }
  virtual PartPlace place() const { return PartPlace::of_training; }

  // The state that rank 0 saves for all ranks. Collective: where the ranks have different states.
  virtual SavedState state() = 0;
  virtual void load(const SavedState& state) = 0;
  // Memory that the tensors of a saved state may be read into.
  virtual NamedTensors own_tensors() { return {}; }

  // The state's tensors as pieces, for a training that is sharded.
  virtual bool has_pieces() const { return false; }
  virtual TensorPieces pieces() const { return {}; }

  // Numbers without which a saved state does not fit.
  virtual Strings needed_numbers() const { return {}; }
  virtual void begin(Beginning /*beginning*/) {}
  // The rates that this part sets for an optimizer.
  virtual std::optional<LearningRates> learning_rates() { return std::nullopt; }
  // The place of the training in the data after `step` steps, for the manifest. A loader knows it.
  virtual std::optional<TrainingPosition> position_after(int64_t /*step*/) { return std::nullopt; }
  virtual bool is_within_step() const { return false; }

 private:
  std::string name_;
};

// A part that is no object: what gives its state, and what takes it.
class PartOfFunctions : public TrainingPart {
 public:
  PartOfFunctions(std::string name,
                  std::function<SavedState()> state,
                  std::function<void(const SavedState&)> load)
      : TrainingPart(std::move(name)), state_(std::move(state)), load_(std::move(load)) {}

  SavedState state() override { return state_(); }
  void load(const SavedState& state) override { load_(state); }

 private:
  std::function<SavedState()> state_;
  std::function<void(const SavedState&)> load_;
};

// The adapter of an object, which must outlive it.
template <class Object>
class PartOf;

template <HasState Object>
class PartOf<Object> : public TrainingPart {
 public:
  PartOf(std::string name, ProcessGroup& /*group*/, Object& object)
      : TrainingPart(std::move(name)), object_(object) {}

  SavedState state() override { return object_.state(); }
  void load(const SavedState& state) override { object_.load_state(state); }

  NamedTensors own_tensors() override {
    if constexpr (HasOwnTensors<Object>)
      return object_.own_tensors();
    return {};
  }
  bool has_pieces() const override { return HasPieces<Object>; }
  TensorPieces pieces() const override {
    if constexpr (HasPieces<Object>)
      return object_.pieces();
    return {};
  }
  // Precision of fp16 needs the scale. It is asked before anything is loaded.
  Strings needed_numbers() const override {
    if constexpr (requires { object_.needed_numbers(); })
      return object_.needed_numbers();
    return {};
  }
  // The file of Metrics may have lines of steps that come again.
  void begin(Beginning beginning) override {
    if constexpr (requires { object_.begin(beginning); })
      object_.begin(beginning);
  }
  // A Schedule sets its optimizer's rates from initial ones.
  std::optional<LearningRates> learning_rates() override {
    if constexpr (requires {
                    object_.set_initial_lrs(object_.initial_lrs());
                    object_.optimizer();
                  }) {
      return LearningRates{.name = name(),
                           .optimizer = &object_.optimizer(),
                           .get = [this] { return object_.initial_lrs(); },
                           .set = [this](const Doubles& rates) { object_.set_initial_lrs(rates); }};
    }
    return std::nullopt;
  }

 private:
  Object& object_;
};

// The ranks read the same data together, so rank 0's position is that of all.
template <HasDataPosition Object>
class PartOf<Object> : public TrainingPart {
 public:
  PartOf(std::string name, ProcessGroup& group, Object& object)
      : TrainingPart(std::move(name)), object_(object), global_batch_(group, object) {}

  PartPlace place() const override { return PartPlace::of_data; }
  SavedState state() override {
    SavedState state = state_of(object_.position());
    global_batch_.add_to(&state);
    return state;
  }
  void load(const SavedState& state) override {
    object_.restore(data_position_of(name(), state));
    global_batch_.tell_if_other(name(), state);
  }
  std::optional<TrainingPosition> position_after(int64_t step) override {
    return training_position(step, object_.position());
  }
  bool is_within_step() const override {
    if constexpr (requires { object_.is_within_step(); })
      return object_.is_within_step();
    return false;
  }

 private:
  Object& object_;
  GlobalBatchOf<Object> global_batch_;
};

// All ranks' positions are saved. On other numbers of ranks or workers, a load divides what was
// left of the epoch over them.
template <HasStreamPosition Object>
class PartOf<Object> : public TrainingPart {
 public:
  PartOf(std::string name, ProcessGroup& group, Object& object)
      : TrainingPart(std::move(name)),
        group_(group),
        object_(object),
        global_batch_(group, object) {}

  PartPlace place() const override { return PartPlace::of_data; }
  SavedState state() override {
    SavedState state = stream_positions(group_, object_.position());
    saved_last_ = place_in_streams(state);
    global_batch_.add_to(&state);
    return state;
  }
  void load(const SavedState& state) override {
    object_.restore(positions_of_ranks(name(), state));
    global_batch_.tell_if_other(name(), state);
  }
  std::optional<TrainingPosition> position_after(int64_t step) override {
    saved_last_.step = step;
    return saved_last_;
  }

 private:
  ProcessGroup& group_;
  Object& object_;
  GlobalBatchOf<Object> global_batch_;
  TrainingPosition saved_last_;
};

// A program's own numbers, tensors and texts. A load writes them into the object.
template <>
class PartOf<SavedState> : public PartOfFunctions {
 public:
  PartOf(std::string name, ProcessGroup& /*group*/, SavedState& values)
      : PartOfFunctions(
            std::move(name),
            [&values] { return values; },
            [&values](const SavedState& state) { values = state; }) {}
};

// A communication hook's memory, on every rank.
std::unique_ptr<TrainingPart> hook_part(const std::string& name,
                                        ProcessGroup& group,
                                        const Hook& hook);

}  // namespace muster
