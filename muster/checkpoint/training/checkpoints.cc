#include "muster/checkpoint/training/checkpoints.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/training/generator_states.h"
#include "muster/checkpoint/training/hook_states.h"
#include "muster/checkpoint/training/optimizer_parameters.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// A part's tensors, numbers and texts as tensors of one file: "tensors/ema/fc.weight",
// "numbers/ema/updates".
constexpr const char* kTensors = "tensors/";
constexpr const char* kNumbers = "numbers/";
constexpr const char* kTexts = "texts/";
constexpr const char* kThere =
    "";  // a number of every part, so that one with an empty state is there too
constexpr const char* kRunId = "run_id";
constexpr const char* kLaunch = "launch";
constexpr const char* kBegunBy =
    "begun_by";  // the run that the training began in: it may go on in others

std::string begun_by(const std::map<std::string, std::string>& user) {
  for (const char* key : {kBegunBy, kRunId})
    if (const auto found = user.find(key); found != user.end())
      return found->second;
  return "";
}

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty())
    std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  const at::Tensor here = bytes.contiguous();
  return {reinterpret_cast<const char*>(here.const_data_ptr<uint8_t>()),
          static_cast<size_t>(here.numel())};
}

void put(NamedTensors& into, const std::string& part, const SavedState& state) {
  for (const auto& [name, tensor] : state.tensors)
    into[cat(kTensors, part, "/", name)] = tensor;
  for (const auto& [name, text] : state.texts)
    into[cat(kTexts, part, "/", name)] = bytes_of(text);
  for (const auto& [name, number] : state.numbers)
    into[cat(kNumbers, part, "/", name)] = at::scalar_tensor(number, at::kDouble);
  into[cat(kNumbers, part, "/", kThere)] = at::scalar_tensor(1, at::kDouble);
}

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr const char* kDescription = "description";

SavedState optimizer_state_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  const OptimizerSnapshot snapshot = snapshot_optimizer(model, optimizer);
  SavedState state;
  state.tensors = snapshot.tensors;
  state.tensors[kDescription] = bytes_of(snapshot.description);
  return state;
}

// Takes the tensors: the optimizer keeps those that lie as it needs them.
void load_optimizer_state(const std::string& name,
                          const torch::nn::Module& model,
                          torch::optim::Optimizer& optimizer,
                          SavedState state) {
  OptimizerSnapshot snapshot{.description = text_of(state.tensor(name, kDescription)),
                             .tensors = {}};
  state.tensors.erase(kDescription);
  snapshot.tensors = std::move(state.tensors);
  restore_optimizer(model, optimizer, std::move(snapshot));
}

}  // namespace

Checkpoints::Checkpoints(ProcessGroup group, CheckpointsOptions options)
    : group_(std::move(group)), options_(std::move(options)), begun_by_(options_.run_id) {
  if (options_.folder.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "checkpoints: expected a folder, got none, since this launcher gives none; set .folder");
  }
  if (options_.every < 0 || options_.keep_last < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoints: expected every and keep_last of 0 or more, got ",
                    options_.every,
                    " and ",
                    options_.keep_last));
  }
  if (options_.in_memory.value_or(0) < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoints: expected in_memory of 0 or more, got ", *options_.in_memory));
  }
  add_part(
      "generators",
      [this] { return generator_states(group_); },
      [this](const SavedState& state) { load_generator_states(group_, state); });
}

void Checkpoints::check_name(const std::string& name) const {
  const auto is_it = [&](const auto& other) {
    return other.first == name;
  };
  const bool taken_already =
      std::any_of(models_.begin(), models_.end(), is_it) ||
      std::any_of(divided_models_.begin(), divided_models_.end(), is_it) ||
      std::any_of(optimizers_.begin(), optimizers_.end(), is_it) ||
      std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == name; });
  if (!taken_already && !name.empty() && name.find_first_of("/.") == std::string::npos)
    return;
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoints: expected a name of its own without '/' and '.', got '",
                  name,
                  "'",
                  taken_already ? ", which another part has" : "",
                  "; choose another"));
}

std::string Checkpoints::name_of(const at::Tensor& parameter) const {
  for (const auto& [name, model] : models_)
    for (const auto& item : model->named_parameters())
      if (item.value().is_same(parameter))
        return cat("'", item.key(), "'");
  return shape_as_name(parameter);
}

Checkpoints& Checkpoints::add(const std::string& name, std::shared_ptr<torch::nn::Module> model) {
  check_name(name);
  models_.emplace_back(name, std::move(model));
  joined_.reset();
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  check_name(name);
  require_each_once(cat("checkpoints: '", name, "'"),
                    parameters_of(optimizer),
                    [this](const at::Tensor& parameter) { return name_of(parameter); });
  optimizers_.emplace_back(name, &optimizer);
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name, TensorPieces model) {
  check_name(name);
  check_pieces(model);
  divided_models_.emplace_back(name, std::move(model));
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name,
                              torch::optim::Optimizer& optimizer,
                              TensorPieces parameters) {
  add(name, optimizer);
  check_pieces(parameters);
  divided_parameters_ = std::move(parameters);
  return *this;
}

Checkpoints& Checkpoints::add_hook(const std::string& name, const Hook& hook) {
  return add_part(
      name,
      [this, hook] { return hook_states(group_, hook.state()); },
      [this, hook](const SavedState& state) { hook.load_state(own_hook_state(group_, state)); });
}

Checkpoints& Checkpoints::add_part(const std::string& name,
                                   std::function<SavedState()> state,
                                   std::function<void(const SavedState&)> load,
                                   Place place) {
  check_name(name);
  parts_.push_back(
      {.name = name, .place = place, .state = std::move(state), .load = std::move(load)});
  return *this;
}

// A single model's tensors have its own names in the file, as if it were saved alone.
void Checkpoints::join_models() {
  if (joined_)
    return;
  if (models_.empty()) {
    throw Error(ErrorCode::failed_precondition,
                "checkpoints: expected a model, got none; add(\"model\", net) first");
  }
  if (models_.size() == 1) {
    joined_ = models_.front().second;
    return;
  }
  joined_ = std::make_shared<torch::nn::Module>("models");
  for (const auto& [name, model] : models_)
    joined_->register_module(name, model);
}

TrainingState Checkpoints::training_state() {
  join_models();
  check_parts_are_whole();
  return {.model = *joined_,
          .optimizer = optimizers_.size() == 1 ? optimizers_.front().second : nullptr};
}

ShardedState Checkpoints::sharded_state(bool may_begin_anew) {
  const size_t models = models_.size() + divided_models_.size();
  if (models != 1 || optimizers_.size() > 1) {
    throw Error(
        ErrorCode::failed_precondition,
        cat("checkpoints: expected one model and at most one optimizer where they are divided over "
            "ranks, got ",
            models,
            " and ",
            optimizers_.size(),
            "; save the others separately"));
  }
  const bool is_whole = divided_models_.empty();
  ShardedState state{.model = is_whole ? whole_pieces(*models_.front().second)
                                       : divided_models_.front().second};
  if (!optimizers_.empty())
    state.optimizer = {.optimizer = optimizers_.front().second,
                       .parameters = divided_parameters_ ? *divided_parameters_ : state.model};
  state.parts_in_pieces = parts_in_pieces(state.model, may_begin_anew);
  return state;
}

// Where each rank has its own model, each has its own averages of it.
std::vector<ShardedState::Part> Checkpoints::parts_in_pieces(const TensorPieces& model,
                                                             bool may_begin_anew) const {
  std::set<std::string> own;
  for (const TensorPiece& piece : model)
    if (piece.is_own)
      own.insert(piece.name);
  std::vector<ShardedState::Part> parts;
  for (const Part& part : parts_) {
    if (!part.pieces || (may_begin_anew && is_fresh(part.name)))
      continue;
    parts.push_back({.prefix = cat(kTensors, part.name, "/"), .pieces = part.pieces()});
    for (TensorPiece& piece : parts.back().pieces) {
      piece.is_own = piece.is_own || own.contains(piece.name);
      piece.name.insert(0, parts.back().prefix);
      for (std::string& alias : piece.aliases)
        alias.insert(0, parts.back().prefix);
    }
  }
  return parts;
}

// What a rank has of a part, if it has no more, would be taken for all of it.
void Checkpoints::check_parts_are_whole() const {
  for (const Part& part : parts_) {
    if (!part.pieces)
      continue;
    for (const TensorPiece& piece : part.pieces()) {
      if (element_count(piece.elements) == element_count(piece.shape))
        continue;
      throw Error(ErrorCode::failed_precondition,
                  cat("checkpoints: expected '",
                      part.name,
                      "' to be whole, as the model is, got ",
                      to_string(piece.elements),
                      " of '",
                      piece.name,
                      "'; add the model and its optimizer by their pieces too"));
    }
  }
}

// Whether the first checkpoint that may be loaded, as rank 0 sees it, is a sharded one.
bool Checkpoints::finds_sharded(const LoadOptions& load) const {
  std::string found;
  Peers(group_).on_rank0([&] {
    for (const auto& [step, path, is_abandoned] :
         list_by_saving(options_.folder, load.only, load.accept)) {
      try {
        const Manifest manifest = read_manifest(path);
        if (load.accept && !load.accept(manifest))
          continue;
        if (is_sharded(manifest))
          found = "yes";
        return;
      } catch (const Error&) {
        // Damaged: said by whoever loads.
      }
    }
  });
  Peers(group_).share(found);
  return !found.empty();
}

std::optional<LoadedCheckpoint> Checkpoints::load_latest(const LoadOptions& load,
                                                         bool may_begin_anew) {
  if (!is_divided() && !finds_sharded(load))
    return load_latest_checkpoint(options_.folder, training_state(), group_, load);
  auto loaded = load_latest_sharded(options_.folder, sharded_state(may_begin_anew), group_, load);
  if (loaded && after_load_)
    after_load_();
  return loaded;
}

void Checkpoints::check_parts(const TensorEntries& saved, bool may_begin_anew) const {
  std::set<std::string> mine, theirs;
  for (const Part& part : parts_)
    mine.insert(part.name);
  for (const auto& [name, optimizer] : optimizers_)
    mine.insert(name);
  for (const auto& [name, entry] : saved) {
    if (name.starts_with(kNumbers) && name.ends_with('/'))
      theirs.insert(name.substr(std::strlen(kNumbers), name.size() - std::strlen(kNumbers) - 1));
  }
  for (const std::string& name : options_.new_parts)
    if (!theirs.contains(name) && is_added(name))
      mine.erase(name);
  for (const std::string& name : options_.leave_out)
    theirs.erase(name);
  if (may_begin_anew) {
    for (const std::string& name : options_.fresh) {
      mine.erase(name);
      theirs.erase(name);
    }
  }
  if (mine == theirs)
    return check_needed_numbers(saved, may_begin_anew);
  throw Error(
      ErrorCode::invalid_argument,
      cat("checkpoints: expected a checkpoint with the parts ",
          join(mine, ", "),
          ", got one with ",
          join(theirs, ", "),
          "; add what the run that saved it had or name it in leave_out, name what is new in "
          "new_parts, or begin anew"));
}

void Checkpoints::check_needed_numbers(const TensorEntries& saved, bool may_begin_anew) const {
  for (const Part& part : parts_) {
    const bool is_there = saved.contains(cat(kNumbers, part.name, "/", kThere));
    if (!part.needed || !is_there || (may_begin_anew && is_fresh(part.name)))
      continue;
    for (const std::string& number : part.needed()) {
      if (saved.contains(cat(kNumbers, part.name, "/", number)))
        continue;
      throw Error(ErrorCode::invalid_argument,
                  cat("checkpoints: expected '",
                      part.name,
                      "' to have been saved with the number '",
                      number,
                      "', which it needs as it is now, got one without; make it as the run that "
                      "saved it had "
                      "it, or name it in fresh"));
    }
  }
}

// As a part, not as a model or an optimizer.
bool Checkpoints::is_added(const std::string& name) const {
  return std::any_of(
      parts_.begin(), parts_.end(), [&](const Part& part) { return part.name == name; });
}

bool Checkpoints::is_fresh(const std::string& name) const {
  return is_in(options_.fresh, name);
}

void Checkpoints::check_named_parts() const {
  const auto check_added = [&](const char* option, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (is_added(name))
        continue;
      throw Error(ErrorCode::invalid_argument,
                  cat("checkpoints: expected ",
                      option,
                      " to name parts that are added, not models or optimizers, got '",
                      name,
                      "'"));
    }
  };
  check_added("new_parts", options_.new_parts);
  check_added("fresh", options_.fresh);
  for (const std::string& name : options_.leave_out) {
    const auto is_it = [&](const auto& optimizer) {
      return optimizer.first == name;
    };
    const bool is_optimizer = std::any_of(optimizers_.begin(), optimizers_.end(), is_it);
    if (!is_added(name) && !is_optimizer)
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoints: expected leave_out to name parts that are not added, got '",
                    name,
                    "'; name it in fresh to begin it anew"));
  }
}

// Whether this launch of the job has saved it. Another one's may have its run id, as Slurm's jobs
// that are requeued.
bool Checkpoints::is_of_this_launch(const Manifest& manifest) const {
  const auto says = [&](const char* key, const std::string& value) {
    const auto found = manifest.user.find(key);
    return found != manifest.user.end() && found->second == value;
  };
  if (!options_.launch.empty())
    return says(kLaunch, options_.launch);
  const bool is_known =
      !options_.run_id.empty() && options_.run_id != "none";  // torchrun's default
  return is_known && says(kRunId, options_.run_id);
}

// Ranks that were started again and were not to resume: what another job has left here is not
// theirs.
std::optional<LoadedCheckpoint> Checkpoints::load_of_this_launch() {
  if (options_.attempt == 0)
    return std::nullopt;
  const LoadOptions load{
      .accept = [this](const Manifest& manifest) { return is_of_this_launch(manifest); },
      .check_parts =
          [this](const TensorEntries& saved) { check_parts(saved, /*may_begin_anew=*/false); }};
  return load_latest(load, /*may_begin_anew=*/false);
}

std::optional<LoadedCheckpoint> Checkpoints::load_where_asked() {
  if (options_.resume_from.empty() && !options_.resume)
    return std::nullopt;
  const LoadOptions load{.only = options_.resume_from,
                         .check_parts = [this](const TensorEntries& saved) {
                           check_parts(saved, /*may_begin_anew=*/true);
                         }};
  return load_latest(load, /*may_begin_anew=*/true);
}

bool Checkpoints::keeps_its_state(const Part& part,
                                  const ReadParts& read,
                                  bool may_begin_anew) const {
  if (may_begin_anew && is_fresh(part.name))
    return true;
  if (!is_in(options_.new_parts, part.name))
    return false;
  return read(cat(kNumbers, part.name, "/"), {}).empty();
}

// One part after the other, so that no more than one is in memory twice. What has large tensors
// (averages) is read straight into them.
void Checkpoints::load_parts(const ReadParts& read, Place place, bool may_begin_anew) {
  const auto saved = [&](const std::string& part, const NamedTensors& into) {
    SavedState state{.numbers = {}, .tensors = read(cat(kTensors, part, "/"), into), .texts = {}};
    for (const auto& [name, tensor] : read(cat(kNumbers, part, "/"), {}))
      if (name != kThere)
        state.numbers[name] = tensor.item<double>();
    for (const auto& [name, tensor] : read(cat(kTexts, part, "/"), {}))
      state.texts[name] = text_of(tensor);
    return state;
  };
  if (place == Place::of_training && optimizers_.size() > 1) {
    for (const auto& [name, optimizer] : optimizers_)
      load_optimizer_state(name, *joined_, *optimizer, saved(name, {}));
  }
  for (const Part& part : parts_) {
    if (part.place != place || keeps_its_state(part, read, may_begin_anew))
      continue;
    const SavedState state =
        saved(part.name, part.own_tensors ? part.own_tensors() : NamedTensors());
    Peers(group_).together([&] { part.load(state); });
  }
}

// Abandons what was saved after it. All ranks know which: the next rank 0 may be another process.
void Checkpoints::begin_branch(const LoadedCheckpoint& loaded) {
  std::string last;
  Peers(group_).on_rank0([&] { last = cat(next_serial(options_.folder, loaded.abandoned) - 1); });
  Peers(group_).share(last);
  abandoned_ = abandoned_after(loaded.abandoned, loaded.serial, std::stoll(last));
}

bool Checkpoints::restore() {
  finish();
  const Span span("restore", Category::checkpoint);
  check_named_parts();
  const bool is_asked = options_.resume || !options_.resume_from.empty() || options_.attempt > 0;
  const bool is_found = is_asked && (restore_from_memory() || load_saved());
  if (is_found || options_.attempt > 0)
    note_resumed(step_, options_.attempt);
  const Beginning otherwise = options_.attempt > 0 ? Beginning::again : Beginning::anew;
  begin_parts(is_found ? Beginning::from_saved_one : otherwise);
  return is_found;
}

void Checkpoints::begin_parts(Beginning beginning) {
  for (const Part& part : parts_) {
    const bool is_new = is_fresh(part.name) && begun_anew_at_ >= 0;
    if (part.begin)
      part.begin(is_new ? Beginning::anew : beginning);
  }
}

bool Checkpoints::load_saved() {
  const ProgramsRates programs(learning_rates());
  auto loaded = load_of_this_launch();
  const bool may_begin_anew = !loaded;
  if (!loaded)
    loaded = load_where_asked();
  if (group_.rank() == 0)
    log(LogLevel::info,
        cat("resume: ", loaded ? loaded->path : "no checkpoint yet in " + options_.folder));
  if (!loaded)
    return false;
  load_parts(loaded->read_parts, Place::of_training, may_begin_anew);
  load_parts(loaded->read_parts, Place::of_data, may_begin_anew);
  if (may_begin_anew) {
    begun_anew_at_ = loaded->serial;
    if (options_.new_learning_rates)
      new_rates_ = programs;
    take_new_rates();
    apply_schedules();
    if (group_.rank() == 0)
      programs.tell_differences();
  }
  begun_by_ = begun_by(loaded->user);
  begin_branch(*loaded);
  step_ = last_step_ = loaded->position.step;
  path_ = loaded->path;
  return true;
}

// In place of those that the checkpoint of an earlier run has.
void Checkpoints::take_new_rates() {
  if (!new_rates_)
    return;
  new_rates_->restore();
  if (after_load_)
    after_load_();
}

// The optimizer has the checkpoint's rates, also where the schedule keeps its own state.
void Checkpoints::apply_schedules() const {
  for (const LearningRates& schedule : schedules_)
    schedule.set(schedule.get());
}

// What sets an optimizer's rates stands for it.
std::vector<LearningRates> Checkpoints::learning_rates() const {
  std::vector<LearningRates> all = schedules_;
  std::erase_if(all, [&](const LearningRates& schedule) { return is_fresh(schedule.name); });
  for (const auto& [name, optimizer] : optimizers_) {
    const torch::optim::Optimizer* outer =
        divided_parameters_ && delegating_ ? delegating_ : optimizer;
    const bool is_scheduled =
        std::any_of(schedules_.begin(), schedules_.end(), [&](const LearningRates& one) {
          return one.optimizer == outer;
        });
    if (!is_scheduled)
      all.push_back(rates_of_optimizer(name, *optimizer));
  }
  return all;
}

NamedTensors Checkpoints::saved_parts() {
  NamedTensors saved;
  for (const Part& part : parts_) {
    SavedState state = part.state();
    if (part.pieces && is_divided())
      state.tensors.clear();  // sharded_state() has them
    put(saved, part.name, state);
  }
  if (optimizers_.size() == 1)
    put(saved, optimizers_.front().first, {});  // it has a file of its own
  if (optimizers_.size() > 1) {
    join_models();
    for (const auto& [name, optimizer] : optimizers_)
      put(saved, name, optimizer_state_of(*joined_, *optimizer));
  }
  return saved;
}

// Of step `latest` or before. What was saved before parts began anew does not have them as they are
// now.
std::optional<LoadedCheckpoint> Checkpoints::load_earlier(int64_t latest) {
  for (const bool is_older : {false, true}) {
    const LoadOptions load{.accept = [this, latest, is_older](const Manifest& manifest) {
      return manifest.position.step <= latest && (manifest.serial <= begun_anew_at_) == is_older &&
             begun_by(manifest.user) == begun_by_ && !is_in(abandoned_, manifest.serial);
    }};
    if (auto loaded = load_latest(load, is_older))
      return loaded;
  }
  return std::nullopt;
}

int64_t Checkpoints::go_back(int64_t steps) {
  if (steps < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoints: expected to go back by 1 step or more, got ",
                    steps,
                    "; 10 is a beginning"));
  }
  finish();
  const int64_t latest = last_step_ - steps;
  const auto loaded = load_earlier(latest);
  if (!loaded) {
    throw Error(ErrorCode::failed_precondition,
                cat("checkpoints: expected one of step ",
                    latest,
                    " or before to go back to, got none in '",
                    options_.folder,
                    "'; save more often (.every), keep more (.keep_last), or go back less"));
  }
  const bool is_of_earlier_run = loaded->serial <= begun_anew_at_;
  load_parts(loaded->read_parts, Place::of_training, is_of_earlier_run);
  if (is_of_earlier_run)
    take_new_rates();
  apply_schedules();
  begin_branch(*loaded);
  path_ = loaded->path;
  ++goings_back_;
  if (steps_between_kept() > 0)
    keep(last_step_);  // what is in memory is what it goes back from
  if (group_.rank() == 0) {
    log(LogLevel::warn,
        cat("training goes back from step ",
            last_step_,
            " to ",
            loaded->path,
            ", and on with the data that follow"));
  }
  return loaded->position.step;
}

std::string Checkpoints::save(int64_t step) {
  last_step_ = step;
  if (steps_between_kept() > 0)
    keep(step);  // so what is in memory is never older than what is on the disk
  const Span span("checkpoint", Category::checkpoint);
  const at::NoGradGuard no_grad;
  const CheckpointOptions options{
      .directory = options_.folder,
      .keep_last = options_.keep_last,
      .user = {{kRunId, options_.run_id}, {kLaunch, options_.launch}, {kBegunBy, begun_by_}},
      .parent = path_.substr(path_.rfind('/') + 1),
      .abandoned = abandoned_,
      .is_own = [mine = begun_by_](const Manifest& manifest) {
        return begun_by(manifest.user) == mine;
      }};
  if (is_divided()) {
    if (before_save_)
      before_save_();
    ShardedState state = sharded_state();
    state.parts = saved_parts();
    path_ =
        sharded_writer_.start(options, state, position_after(step), group_, options_.background);
    if (!options_.background)
      sharded_writer_.finish(group_);
    return path_;
  }
  TrainingState state = training_state();
  state.parts = saved_parts();
  if (!options_.background)
    return path_ = save_checkpoint(options, state, position_after(step), group_);
  Peers(group_).on_rank0(
      [&] { writer_.start(options, image_of(state, position_after(step), group_.size())); });
  return path_ = cat(options_.folder, "/step-", step);
}

void Checkpoints::finish() {
  const Span span("checkpoint", Category::checkpoint);
  if (is_divided())
    return sharded_writer_.finish(group_);
  if (options_.background)
    Peers(group_).on_rank0([&] { writer_.finish(); });
}

std::string Checkpoints::save_when_due(int64_t step) {
  last_step_ = step;
  const bool is_due = options_.every > 0 && step > 0 && step % options_.every == 0;
  if (is_due)
    return save(step);
  if (const int64_t every = steps_between_kept(); every > 0 && step > 0 && step % every == 0)
    keep(step);
  return "";
}

bool Checkpoints::save_or_stop(int64_t step) {
  const bool saved = !save_when_due(step).empty();
  if (!options_.should_stop || !options_.should_stop())
    return false;
  if (!saved)
    save(step);
  finish();
  if (group_.rank() == 0)
    log(LogLevel::info, cat("stopped after step ", step, ", which is saved: ", path_));
  return true;
}

}  // namespace muster
