#include "muster/train/checkpoints.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/train/generator_states.h"
#include "muster/train/hook_states.h"

namespace muster {

namespace {

// A part's tensors and numbers as tensors of one file: "tensors/ema/fc.weight", "numbers/ema/updates".
constexpr const char* kTensors = "tensors/";
constexpr const char* kNumbers = "numbers/";
constexpr const char* kThere = "";  // a number of every part, so that one with an empty state is there too
constexpr const char* kRunId = "run_id";
constexpr const char* kBegunBy = "begun_by";  // the run that the training began in: it may go on in others

std::string begun_by(const std::map<std::string, std::string>& user) {
  for (const char* key : {kBegunBy, kRunId})
    if (const auto found = user.find(key); found != user.end()) return found->second;
  return "";
}

void put(NamedTensors& into, const std::string& part, const SavedState& state) {
  for (const auto& [name, tensor] : state.tensors) into[cat(kTensors, part, "/", name)] = tensor;
  for (const auto& [name, number] : state.numbers)
    into[cat(kNumbers, part, "/", name)] = at::scalar_tensor(number, at::kDouble);
  into[cat(kNumbers, part, "/", kThere)] = at::scalar_tensor(1, at::kDouble);
}

SavedState taken(const NamedTensors& from, const std::string& part) {
  SavedState state;
  const std::string tensors = cat(kTensors, part, "/"), numbers = cat(kNumbers, part, "/");
  for (const auto& [name, tensor] : from) {
    if (name.starts_with(tensors)) state.tensors[name.substr(tensors.size())] = tensor;
    if (name.starts_with(numbers)) state.numbers[name.substr(numbers.size())] = tensor.item<double>();
  }
  state.numbers.erase(kThere);
  return state;
}

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  const at::Tensor here = bytes.contiguous();
  return {reinterpret_cast<const char*>(here.const_data_ptr<uint8_t>()), static_cast<size_t>(here.numel())};
}

constexpr const char* kDescription = "description";

SavedState optimizer_state_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  const OptimizerSnapshot snapshot = snapshot_optimizer(model, optimizer);
  SavedState state;
  state.tensors = snapshot.tensors;
  state.tensors[kDescription] = bytes_of(snapshot.description);
  return state;
}

void load_optimizer_state(const std::string& name, const torch::nn::Module& model,
                          torch::optim::Optimizer& optimizer, const SavedState& state) {
  OptimizerSnapshot snapshot{.description = text_of(state.tensor(name, kDescription)),
                             .tensors = state.tensors};
  snapshot.tensors.erase(kDescription);
  restore_optimizer(model, optimizer, snapshot);
}

}  // namespace

Checkpoints::Checkpoints(ProcessGroup group, CheckpointsOptions options)
    : group_(std::move(group)), options_(std::move(options)), begun_by_(options_.run_id) {
  if (options_.folder.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "checkpoints: expected a folder, got none: this launcher gives none; set .folder");
  }
  if (options_.every < 0 || options_.keep_last < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoints: expected every and keep_last of 0 or more, got ", options_.every, " and ",
                    options_.keep_last));
  }
  add_part(
      "generators", [this] { return generator_states(group_); },
      [this](const SavedState& state) { load_generator_states(group_, state); });
}

void Checkpoints::check_name(const std::string& name) const {
  const auto is_it = [&](const auto& other) { return other.first == name; };
  const bool taken_already =
      std::any_of(models_.begin(), models_.end(), is_it) ||
      std::any_of(optimizers_.begin(), optimizers_.end(), is_it) ||
      std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == name; });
  if (!taken_already && !name.empty() && name.find_first_of("/.") == std::string::npos) return;
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoints: expected a name of its own without '/' and '.', got '", name, "'",
                  taken_already ? ", which another part has" : "", "; choose another"));
}

Checkpoints& Checkpoints::add(const std::string& name, std::shared_ptr<torch::nn::Module> model) {
  check_name(name);
  models_.emplace_back(name, std::move(model));
  joined_.reset();
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  check_name(name);
  optimizers_.emplace_back(name, &optimizer);
  return *this;
}

Checkpoints& Checkpoints::add_hook(const std::string& name, const Hook& hook) {
  return add_part(
      name, [this, hook] { return hook_states(group_, hook.state()); },
      [this, hook](const SavedState& state) { hook.load_state(own_hook_state(group_, state)); });
}

Checkpoints& Checkpoints::add_part(const std::string& name, std::function<SavedState()> state,
                                   std::function<void(const SavedState&)> load) {
  check_name(name);
  parts_.push_back({name, std::move(state), std::move(load)});
  return *this;
}

// A single model's tensors have its own names in the file, as if it were saved alone.
void Checkpoints::join_models() {
  if (joined_) return;
  if (models_.empty()) {
    throw Error(ErrorCode::failed_precondition,
                "checkpoints: expected a model, got none; add(\"model\", net) first");
  }
  if (models_.size() == 1) {
    joined_ = models_.front().second;
    return;
  }
  joined_ = std::make_shared<torch::nn::Module>("models");
  for (const auto& [name, model] : models_) joined_->register_module(name, model);
}

TrainingState Checkpoints::training_state() {
  join_models();
  return {.model = *joined_, .optimizer = optimizers_.size() == 1 ? optimizers_.front().second : nullptr};
}

void Checkpoints::check_parts(const TensorEntries& saved) const {
  std::set<std::string> mine, theirs;
  for (const Part& part : parts_) mine.insert(part.name);
  for (const auto& [name, optimizer] : optimizers_) mine.insert(name);
  for (const auto& [name, entry] : saved) {
    if (name.starts_with(kNumbers) && name.ends_with('/'))
      theirs.insert(name.substr(std::strlen(kNumbers), name.size() - std::strlen(kNumbers) - 1));
  }
  if (mine == theirs) return;
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoints: expected a checkpoint with the parts ", join(mine, ", "), ", got one with ",
                  join(theirs, ", "), "; add what the run that saved it had, or begin anew"));
}

bool Checkpoints::restore() {
  finish();
  if (!options_.resume && options_.attempt == 0) return false;
  LoadOptions load{.accept = {}, .check_parts = [this](const TensorEntries& saved) { check_parts(saved); }};
  // Ranks that were started again and were not to resume: what another job has left here is not theirs.
  if (!options_.resume) {
    load.accept = [this](const Manifest& manifest) {
      const auto id = manifest.user.find(kRunId);
      const bool is_known = !options_.run_id.empty() && options_.run_id != "none";  // torchrun's default
      return is_known && id != manifest.user.end() && id->second == options_.run_id;
    };
  }
  const auto loaded = load_latest_checkpoint(options_.folder, training_state(), group_, load);
  if (group_.rank() == 0)
    log(LogLevel::info, cat("resume: ", loaded ? loaded->path : "no checkpoint yet in " + options_.folder));
  if (!loaded) return false;
  if (optimizers_.size() > 1) {
    for (const auto& [name, optimizer] : optimizers_)
      load_optimizer_state(name, *joined_, *optimizer, taken(loaded->parts, name));
  }
  for (const Part& part : parts_) part.load(taken(loaded->parts, part.name));
  begun_by_ = begun_by(loaded->user);
  step_ = loaded->position.step;
  path_ = loaded->path;
  return true;
}

std::string Checkpoints::save(int64_t step) {
  const at::NoGradGuard no_grad;
  TrainingState state = training_state();
  for (const Part& part : parts_) put(state.parts, part.name, part.state());
  if (optimizers_.size() == 1) put(state.parts, optimizers_.front().first, {});  // it has a file of its own
  if (optimizers_.size() > 1) {
    for (const auto& [name, optimizer] : optimizers_)
      put(state.parts, name, optimizer_state_of(*joined_, *optimizer));
  }
  const CheckpointOptions options{
      .directory = options_.folder,
      .keep_last = options_.keep_last,
      .user = {{kRunId, options_.run_id}, {kBegunBy, begun_by_}},
      .is_own = [mine = begun_by_](const Manifest& manifest) { return begun_by(manifest.user) == mine; }};
  if (!options_.background) return path_ = save_checkpoint(options, state, {.step = step}, group_);
  Peers(group_).on_rank0([&] { writer_.start(options, image_of(state, {.step = step}, group_.size())); });
  return path_ = cat(options_.folder, "/step-", step);
}

void Checkpoints::finish() {
  if (options_.background) Peers(group_).on_rank0([&] { writer_.finish(); });
}

std::string Checkpoints::save_when_due(int64_t step) {
  const bool is_due = options_.every > 0 && step > 0 && step % options_.every == 0;
  return is_due ? save(step) : "";
}

bool Checkpoints::save_or_stop(int64_t step) {
  const bool saved = !save_when_due(step).empty();
  if (!options_.should_stop || !options_.should_stop()) return false;
  if (!saved) save(step);
  finish();
  if (group_.rank() == 0) log(LogLevel::info, cat("stopped after step ", step, ", which is saved: ", path_));
  return true;
}

SavedState Checkpoints::state_of(const DataPosition& position) {
  SavedState state;
  state.numbers = {{"epoch", static_cast<double>(position.epoch)},
                   {"consumed", static_cast<double>(position.consumed)},
                   {"dataset_size", static_cast<double>(position.dataset_size)},
                   {"step", static_cast<double>(position.step)},
                   {"order", static_cast<double>(position.order)}};
  return state;
}

DataPosition Checkpoints::position_of(const std::string& name, const SavedState& state) {
  return {.epoch = state.whole_number(name, "epoch"),
          .consumed = state.whole_number(name, "consumed"),
          .dataset_size = state.whole_number(name, "dataset_size"),
          .step = state.whole_number(name, "step"),
          .order = state.whole_number(name, "order")};
}

}  // namespace muster
