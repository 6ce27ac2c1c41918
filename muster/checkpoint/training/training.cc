// The parts are saved and loaded in the order in which they were added; the random generators of
// all ranks are the first. Whether a checkpoint fits is checked on the names in its file, before
// anything is loaded.
#include "muster/checkpoint/training/training.h"

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/training/generator_states.h"
#include "muster/checkpoint/training/part_tensors.h"

namespace muster {

namespace {

template <class... Parts>
[[noreturn]] void refuse_training(const Parts&... parts) {
  throw invalid_argument("checkpoints: expected ", parts...);
}

}  // namespace

// The generators are a part like any other, so "generators" is a name that is taken.
Training::Training(ProcessGroup group, CheckpointsOptions options)
    : group_(std::move(group)), options_(std::move(options)) {
  if (options_.folder.empty())
    refuse_training("a folder, got none, since this launcher gives none; set .folder");
  if (options_.every < 0 || options_.keep_last < 0) {
    refuse_training(
        "every and keep_last of 0 or more, got ", options_.every, " and ", options_.keep_last);
  }
  if (options_.every_time.count() < 0)
    refuse_training("every_time of 0 or more, got ", options_.every_time.count(), " ms");
  if (options_.in_memory.value_or(0) < 0)
    refuse_training("in_memory of 0 or more, got ", *options_.in_memory);
  add(std::make_unique<PartOfFunctions>(
      "generators",
      [this] { return generator_states(group_); },
      [this](const SavedState& state) { load_generator_states(group_, state); }));
}

// Names are parts of names in the file, where '/' and '.' divide them.
void Training::check_name(const std::string& name) const {
  const bool is_taken = models_.contains(name) || is_part(name);
  const bool is_name = !name.empty() && name.find_first_of("/.") == npos;
  if (is_name && !is_taken)
    return;
  refuse_training("a name of its own without '/' and '.', got '",
                  name,
                  "'",
                  is_taken ? ", which another part has" : "",
                  "; choose another");
}

void Training::add(std::unique_ptr<TrainingPart> part) {
  check_name(part->name());
  parts_.push_back(std::move(part));
}

bool Training::is_part(const std::string& name) const {
  return contains(parts_, name, &TrainingPart::name);
}

bool Training::is_fresh(const std::string& name) const {
  return contains(options_.fresh, name);
}

TrainingState Training::whole_state() {
  const TrainingState state = models_.whole_state();
  check_parts_are_whole();
  return state;
}

// A rank that has only some of a part would save that as all of it.
void Training::check_parts_are_whole() const {
  for (const auto& part : parts_) {
    for (const TensorPiece& piece : part->pieces()) {
      if (element_count(piece.elements) == element_count(piece.shape))
        continue;
      throw failed_precondition("checkpoints: expected '",
                                part->name(),
                                "' to be whole, as the model is, got ",
                                to_string(piece.elements),
                                " of '",
                                piece.name,
                                "'; add the model and its optimizer by their pieces too");
    }
  }
}

ShardedState Training::sharded_state(bool may_begin_anew) {
  ShardedState state = models_.sharded_state();
  models_.warn_of_other_buffers(group_.rank() == 0);
  state.parts_in_pieces = parts_in_pieces(state.model, may_begin_anew);
  return state;
}

// Ranks that each have their own model also have their own averages of it.
std::vector<ShardedState::Part> Training::parts_in_pieces(const TensorPieces& model,
                                                          bool may_begin_anew) const {
  const auto own = mapped_to<StringSet>(filtered(model, &TensorPiece::is_own), &TensorPiece::name);
  std::vector<ShardedState::Part> found;
  for (const auto& part : parts_) {
    const bool begins_anew = may_begin_anew && is_fresh(part->name());
    if (!part->has_pieces() || begins_anew)
      continue;
    const auto prefix = tensor_prefix(part->name());
    TensorPieces pieces = part->pieces();
    for (TensorPiece& piece : pieces) {
      piece.is_own = piece.is_own || own.contains(piece.name);
      piece.name.insert(0, prefix);
      for (std::string& alias : piece.aliases)
        alias.insert(0, prefix);
    }
    found.push_back({.prefix = prefix, .pieces = std::move(pieces)});
  }
  return found;
}

// Tensors that sharded_state() has as pieces are left out here: each rank writes its own.
NamedTensors Training::saved_parts() {
  NamedTensors saved;
  for (const auto& part : parts_) {
    SavedState state = part->state();
    if (part->has_pieces() && models_.is_sharded())
      state.tensors.clear();
    put_part(saved, part->name(), state);
  }
  const auto& optimizers = models_.optimizers();
  if (optimizers.size() == 1)
    put_part(saved, optimizers.front().first, {});  // its state has a file of its own
  if (optimizers.size() > 1) {
    for (const auto& [name, optimizer] : optimizers)
      put_part(saved, name, state_of_optimizer(*models_.joined(), *optimizer));
  }
  return saved;
}

// The first loader decides, as in a program whose other loaders are for evaluation.
TrainingPosition Training::position_after(int64_t step) {
  for (const auto& part : parts_)
    if (const auto position = part->position_after(step))
      return *position;
  return {.step = step};
}

bool Training::is_within_step() const {
  const auto first = std::ranges::find(parts_, PartPlace::of_data, &TrainingPart::place);
  return first != parts_.end() && (*first)->is_within_step();
}

void Training::check_named_parts() const {
  const auto check_added = [&](const char* option, const Strings& names) {
    for (const auto& name : names)
      if (!is_part(name))
        refuse_training(
            option, " to name parts that are added, not models or optimizers, got '", name, "'");
  };
  check_added("new_parts", options_.new_parts);
  check_added("fresh", options_.fresh);
  for (const auto& name : options_.leave_out)
    if (is_part(name) || models_.has_optimizer(name))
      refuse_training("leave_out to name parts that are not added, got '",
                      name,
                      "'; name it in fresh to begin it anew");
}

// Both sides are adjusted by the options and must then be equal: a part that is silently left alone
// would train on from nothing.
void Training::check_parts(const TensorEntries& saved, bool may_begin_anew) const {
  StringSet theirs = parts_in(saved), mine;
  for (const auto& part : parts_)
    mine.insert(part->name());
  for (const auto& [name, optimizer] : models_.optimizers())
    mine.insert(name);
  // A new part counts only where the checkpoint lacks it, so the option may stay in the program.
  for (const auto& name : options_.new_parts)
    if (!theirs.contains(name) && is_part(name))
      mine.erase(name);
  for (const auto& name : options_.leave_out)
    theirs.erase(name);
  if (may_begin_anew) {
    for (const auto& name : options_.fresh) {
      mine.erase(name);
      theirs.erase(name);
    }
  }
  if (mine == theirs)
    return check_needed_numbers(saved, may_begin_anew);
  refuse_training("a checkpoint with the parts ",
                  join(mine, ", "),
                  ", got one with ",
                  join(theirs, ", "),
                  "; add what the run that saved it had or name it in leave_out, name what is "
                  "new in new_parts, or begin anew");
}

// Precision of fp16 cannot go on from a training that had no loss scale.
void Training::check_needed_numbers(const TensorEntries& saved, bool may_begin_anew) const {
  const StringSet there = parts_in(saved);
  for (const auto& part : parts_) {
    const bool begins_anew = may_begin_anew && is_fresh(part->name());
    if (begins_anew || !there.contains(part->name()))
      continue;
    for (const auto& number : part->needed_numbers()) {
      if (has_number(saved, part->name(), number))
        continue;
      refuse_training("'",
                      part->name(),
                      "' to have been saved with the number '",
                      number,
                      "', which it needs as it is now, got one without; make it as the run "
                      "that saved it had it, or name it in fresh");
    }
  }
}

// A new part is only skipped where the checkpoint does not have it yet.
bool Training::keeps_its_state(const TrainingPart& part,
                               const ReadParts& read,
                               bool may_begin_anew) const {
  if (may_begin_anew && is_fresh(part.name()))
    return true;
  return contains(options_.new_parts, part.name()) && !has_part(read, part.name());
}

// A load that fails on one rank fails on all, so that none goes on alone.
void Training::load_parts(const ReadParts& read, PartPlace place, bool may_begin_anew) {
  const auto& optimizers = models_.optimizers();
  if (place == PartPlace::of_training && optimizers.size() > 1) {
    for (const auto& [name, optimizer] : optimizers)
      load_state_of_optimizer(name, *models_.joined(), *optimizer, read_part(read, name, {}));
  }
  for (const auto& part : parts_) {
    if (part->place() != place || keeps_its_state(*part, read, may_begin_anew))
      continue;
    const SavedState state = read_part(read, part->name(), part->own_tensors());
    Peers(group_).together([&] { part->load(state); });
  }
}

// For a part that began anew the training is new, whatever it is for the others.
void Training::begin_parts(Beginning beginning, bool has_begun_anew) {
  for (const auto& part : parts_) {
    const bool is_new = has_begun_anew && is_fresh(part->name());
    part->begin(is_new ? Beginning::anew : beginning);
  }
}

std::vector<LearningRates> Training::schedules() {
  return mapped_some(parts_, [&](const auto& part) { return part->learning_rates(); });
}

// A schedule that begins anew does not count here, but its optimizer has a schedule all the same.
std::vector<LearningRates> Training::learning_rates() {
  auto all = schedules();
  std::erase_if(all, [&](const LearningRates& schedule) { return is_fresh(schedule.name); });
  auto scheduled = mapped_to<std::set<const Optimizer*>>(schedules(), &LearningRates::optimizer);
  for (const auto& [name, optimizer] : models_.optimizers())
    if (!scheduled.contains(models_.outer(optimizer)))
      all.push_back(rates_of_optimizer(name, *optimizer));
  return all;
}

// Setting a schedule's initial rates makes it compute the present ones.
void Training::apply_schedules() {
  for (const LearningRates& schedule : schedules())
    schedule.set(schedule.get());
}

}  // namespace muster
