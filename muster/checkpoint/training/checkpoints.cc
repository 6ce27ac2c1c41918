// When a training is saved, and what it goes on from. The training itself (training.h) is what is
// saved, and a store (stores.h) is where it goes. Every checkpoint belongs to a branch: a training
// that goes back abandons what it has saved since, and a later save says so.
#include "muster/checkpoint/training/checkpoints.h"

#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/base/failure_policy.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/best.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/files/saving_lock.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/training/best_metric.h"
#include "muster/checkpoint/training/given_options.h"
#include "muster/checkpoint/training/resumed_objects.h"
#include "muster/checkpoint/training/stores.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

constexpr auto kLaunch = "launch";  // a text in Manifest::user
constexpr auto kBestPart = "best";
constexpr auto kOfMembers = "_own";  // after the name of their optimizer

constexpr auto kNoRunId = "none";  // torchrun's default
constexpr int64_t kEveryStep = 1;

bool is_multiple(int64_t step, int64_t every) {
  return every > 0 && step > 0 && step % every == 0;
}

// Rank 0 writes, or makes the folder that all write into.
std::shared_ptr<const FolderLock> locked_folder(Training& training) {
  const CheckpointsOptions& options = training.options();
  std::shared_ptr<const FolderLock> lock;
  Peers(training.group()).on_rank0([&] {
    lock = lock_for_saving(options.folder, {.launch = options.launch, .attempt = options.attempt});
  });
  return lock;
}

// `begins`: it trains from here on, without a checkpoint.
void check_folder(Training& training, const std::string& begun_by, bool begins = false) {
  Peers(training.group()).on_rank0([&] {
    training.saver().check(begun_by);
    if (begins)
      training.saver().note_begun(begun_by);
  });
}

// A second loader counts from 0. Its checkpoints take the places of earlier ones of the training.
void warn_of_lower_step(TrainingBranch& branch, int64_t step, const ProcessGroup& group) {
  const int64_t before = std::exchange(branch.saved_step, step);
  if (step >= before || std::exchange(branch.has_warned_of_lower_step, true) || group.rank() != 0)
    return;
  log_warning("checkpoints: expected steps that grow, got step ",
              step,
              " after step ",
              before,
              ": what is saved replaces the training's earlier checkpoints of those steps (rank ",
              group.job_rank(),
              "); "
              "count on where another loader begins, as by first + loader.position().step");
}

}  // namespace

Checkpoints::Checkpoints(ProcessGroup group, CheckpointsOptions options)
    : training_(std::make_unique<Training>(std::move(group), std::move(options))),
      whole_store_(std::make_unique<WholeStore>(*training_)),
      sharded_store_(std::make_unique<ShardedStore>(*training_)),
      branch_(std::make_unique<TrainingBranch>()) {
  branch_->begun_by = training_->options().run_id;
  if (!training_->options().best)
    return;
  best_ = std::make_unique<BestMetric>(*training_->options().best);
  add(kBestPart, *best_);
}

Checkpoints::~Checkpoints() {
  ResumedObjects::of_process().forget(this);
}

ProcessGroup& Checkpoints::group() {
  return training_->group();
}

// The store is chosen at each call: a program adds one thing after the other.
TrainingStore& Checkpoints::store() {
  return training_->models().is_sharded() ? *sharded_store_ : *whole_store_;
}

Checkpoints& Checkpoints::add(const std::string& name, ModulePtr model) {
  training_->check_name(name);
  training_->models().add(name, std::move(model));
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name, Optimizer& optimizer) {
  training_->check_name(name);
  training_->models().add(name, optimizer, OwnMembers::unsaved);
  return *this;
}

std::string Checkpoints::add_base(const std::string& name, Optimizer& optimizer) {
  training_->check_name(name);
  training_->models().add(name, optimizer, OwnMembers::in_a_part);
  return name + kOfMembers;
}

Checkpoints& Checkpoints::add(const std::string& name, TensorPieces model) {
  training_->check_name(name);
  training_->models().add(name, std::move(model));
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name,
                              Optimizer& optimizer,
                              TensorPieces parameters) {
  add(name, optimizer);
  shard_optimizer(std::move(parameters));
  return *this;
}

void Checkpoints::shard_optimizer(TensorPieces parameters) {
  training_->models().shard_optimizer(std::move(parameters));
}

Checkpoints& Checkpoints::add_part(std::unique_ptr<TrainingPart> part, const void* object) {
  training_->add(std::move(part));
  ResumedObjects::of_process().add(this, object);
  return *this;
}

void Checkpoints::delegate(DelegatingOptimizer optimizer) {
  training_->models().delegate(std::move(optimizer));
}

// What a save would refuse, which may be hours later.
void Checkpoints::check_savable() {
  Peers(group()).together([&] { training_->models().check_savable(); });
}

// A program that did not restore trains from here on.
void Checkpoints::take_folder() {
  if (has_folder_)
    return;
  check_savable();
  folder_lock_ = locked_folder(*training_);
  has_folder_ = true;
  check_folder(*training_, branch_->begun_by, /*begins=*/true);
}

// A job that loads from the folder of another that still trains may be meant to.
void Checkpoints::warn_of_other_saver() {
  const std::string& folder = training_->options().folder;
  const std::string other = group().rank() == 0 && !has_folder_ ? other_saver(folder) : "";
  if (other.empty())
    return;
  log_warning("checkpoints: another job saves into '",
              folder,
              "' (",
              other,
              "): this one can load there, and is refused when it saves");
}

const std::string& Checkpoints::path() const {
  return branch_->path;
}

// Whether this launch of the job has saved it. Another launch may have its run id, as Slurm's jobs
// that are requeued do.
bool Checkpoints::is_of_this_launch(const Manifest& manifest) const {
  const auto says = [&](const char* key, const std::string& value) {
    return find_or(manifest.user, key) == value;
  };
  const std::string& run_id = training_->options().run_id;
  const std::string& launch = training_->options().launch;
  if (!launch.empty())
    return says(kLaunch, launch);
  const bool is_known = !run_id.empty() && run_id != kNoRunId;
  return is_known && says(kRunId, run_id);
}

// Ranks that were started again go on from what their own launch has saved: what another job has
// left in the folder is not theirs.
std::optional<LoadedCheckpoint> Checkpoints::load_of_this_launch() {
  if (training_->options().attempt == 0)
    return std::nullopt;
  const LoadOptions load{
      .accept = [this](const Manifest& manifest) { return is_of_this_launch(manifest); },
      .check_parts =
          [this](const TensorEntries& saved) {
            training_->check_parts(saved, /*may_begin_anew=*/false);
          }};
  return store().load(load, /*may_begin_anew=*/false);
}

// A program that resumes may have changed since, so parts may begin anew.
std::optional<LoadedCheckpoint> Checkpoints::load_where_asked() {
  const CheckpointsOptions& options = training_->options();
  if (options.resume_from.empty() && !options.resume)
    return std::nullopt;
  const LoadOptions load{.only = options.resume_from,
                         .check_parts = [this](const TensorEntries& saved) {
                           training_->check_parts(saved, /*may_begin_anew=*/true);
                         }};
  return store().load(load, /*may_begin_anew=*/true);
}

// Loads a checkpoint of this branch, of step `latest` or before. One that was saved before parts
// began anew does not have them as they are now, so it comes second.
std::optional<LoadedCheckpoint> Checkpoints::load_earlier(int64_t latest) {
  for (const bool is_older : {false, true}) {
    const LoadOptions load{.accept = [&, is_older](const Manifest& manifest) {
      const bool is_before_fresh_parts = manifest.serial <= begun_anew_at_;
      return manifest.position.step <= latest && is_before_fresh_parts == is_older &&
             training_of(manifest) == branch_->begun_by &&
             !is_in(branch_->abandoned, manifest.serial);
    }};
    if (auto loaded = store().load(load, is_older))
      return loaded;
  }
  return std::nullopt;
}

// The next checkpoint abandons what was saved after `loaded`. All ranks know which those are: the
// next rank 0 may be another process.
void Checkpoints::begin_branch(const LoadedCheckpoint& loaded) {
  const std::string& folder = training_->options().folder;
  std::string last;
  Peers(group()).on_rank0([&] { last = cat(next_serial(folder, loaded.abandoned) - 1); });
  Peers(group()).share(last);
  branch_->abandoned = abandoned_after(loaded.abandoned, loaded.serial, std::stoll(last));
  branch_->path = loaded.path;
  branch_->saved_step = -1;
}

// The memory comes first: its state is never older than one on the disk.
bool Checkpoints::restore() {
  finish();
  const Span span("restore", Category::checkpoint);
  training_->check_named_parts();
  check_savable();
  const CheckpointsOptions& options = training_->options();
  const bool says_that_it_saves = training_->saver().says_that_it_saves();
  if (says_that_it_saves && !has_folder_)
    folder_lock_ = locked_folder(*training_);
  has_folder_ |= says_that_it_saves;
  warn_of_other_saver();
  const bool is_restarted = options.attempt > 0;
  const bool is_asked = options.resume || !options.resume_from.empty() || is_restarted;
  const bool is_found = is_asked && (restore_kept() || load_saved());
  if (is_found || is_restarted)
    ResumedTraining::of_process().note(step_, options.attempt);
  note_resumed(is_found);
  if (is_found)
    training_->saver().note_restored();
  if (says_that_it_saves)
    check_folder(*training_, branch_->begun_by, !is_found);
  const Beginning otherwise = is_restarted ? Beginning::again : Beginning::anew;
  training_->begin_parts(is_found ? Beginning::from_saved_one : otherwise,
                         /*has_begun_anew=*/begun_anew_at_ >= 0);
  return is_found;
}

// A program that leaves parts out says so, and one that sets new rates may well have another
// schedule.
void Checkpoints::note_resumed(bool is_found) {
  const CheckpointsOptions& options = training_->options();
  const bool tells = is_found && options.leave_out.empty() && group().rank() == 0;
  Addresses restored;
  if (tells)
    restored = training_->models().addresses_of_tensors();
  if (tells && !options.new_learning_rates) {
    for (const auto& [name, optimizer] : training_->models().optimizers())
      restored.insert(training_->models().outer(optimizer));
  }
  ResumedObjects::of_process().note_restored(this, step_, std::move(restored));
}

// The loaders are restored last, after the parts of the training.
bool Checkpoints::load_saved() {
  const CheckpointsOptions& options = training_->options();
  const ProgramsRates programs(training_->learning_rates());
  const GivenOptions given(training_->models().optimizers());
  auto loaded = load_of_this_launch();
  const bool may_begin_anew = !loaded;
  if (!loaded)
    loaded = load_where_asked();
  if (group().rank() == 0)
    log_info("resume: ", loaded ? loaded->path : "no checkpoint yet in " + options.folder);
  if (!loaded)
    return false;
  for (const PartPlace place : {PartPlace::of_training, PartPlace::of_data})
    training_->load_parts(loaded->read_parts, place, may_begin_anew);
  if (may_begin_anew) {
    begun_anew_at_ = loaded->serial;
    if (options.new_learning_rates)
      new_rates_ = programs;
    take_new_rates();
    training_->apply_schedules();
    if (group().rank() == 0) {
      programs.tell_differences();
      given.tell_differences();
    }
  }
  branch_->begun_by = training_of({.user = loaded->user});
  begin_branch(*loaded);
  step_ = last_step_ = loaded->position.step;
  return true;
}

// The program's rates replace those that the checkpoint of an earlier run has.
void Checkpoints::take_new_rates() {
  if (!new_rates_)
    return;
  new_rates_->restore();
  training_->models().options_from_part();
}

// The position in the data is not restored: the samples that made the training fail do not come
// again.
int64_t Checkpoints::go_back(int64_t steps) {
  if (steps < 1) {
    throw invalid_argument(
        "checkpoints: expected to go back by 1 step or more, got ", steps, "; 10 is a beginning");
  }
  finish();
  const int64_t latest = last_step_ - steps;
  const auto loaded = load_earlier(latest);
  if (!loaded) {
    throw failed_precondition(
        "checkpoints: expected one of step ",
        latest,
        " or before to go back to, got none in '",
        training_->options().folder,
        "'; save more often (.every), keep more (.keep_last), or go back less");
  }
  // A checkpoint of the run before lacks what this run has begun anew.
  const bool is_of_earlier_run = loaded->serial <= begun_anew_at_;
  training_->load_parts(loaded->read_parts, PartPlace::of_training, is_of_earlier_run);
  if (is_of_earlier_run)
    take_new_rates();
  training_->apply_schedules();
  begin_branch(*loaded);
  ++branch_->goings_back;
  if (steps_between_kept() > 0)
    keep(last_step_);  // what is in memory is what it goes back from
  if (group().rank() == 0) {
    log_warning("training goes back from step ",
                last_step_,
                " to ",
                loaded->path,
                ", and on with the data that follow");
  }
  return loaded->position.step;
}

// By default a state is kept in memory only for jobs whose ranks are replaced in place.
int64_t Checkpoints::steps_between_kept() const {
  if (training_->options().in_memory)
    return *training_->options().in_memory;
  return failure_policy_from_environment() == FailurePolicy::replace ? kEveryStep : 0;
}

void Checkpoints::keep(int64_t step) {
  store().keep(step, *branch_);
}

// Only ranks that were started again have something to take up: a new launch begins in new
// processes.
bool Checkpoints::restore_kept() {
  if (steps_between_kept() == 0 || training_->options().attempt == 0)
    return false;
  const auto restored = store().restore_kept();
  if (!restored)
    return false;
  const KeptState& kept = restored->state;
  // A part may change the tensors that it gets, so it gets its own.
  const ReadParts read = [&](const std::string& prefix, const NamedTensors& /*into*/) {
    NamedTensors parts;
    for (const auto& [name, tensor] : kept.image.parts)
      if (name.starts_with(prefix))
        parts.emplace(name.substr(prefix.size()), tensor.clone());
    return parts;
  };
  for (const PartPlace place : {PartPlace::of_training, PartPlace::of_data})
    training_->load_parts(read, place, /*may_begin_anew=*/false);
  *branch_ = kept.branch;
  step_ = last_step_ = kept.image.position.step;
  if (group().rank() == 0)
    log_info("resume: ", restored->name);
  return true;
}

std::string Checkpoints::save(int64_t step) {
  return save_from(step, best_.get());
}

// What the first batches of a step change, buffers and random numbers, is saved then, and they come
// again.
void Checkpoints::warn_within_step(int64_t step) {
  const bool is_news = training_->is_within_step() && !std::exchange(has_warned_within_step_, true);
  if (!is_news || group().rank() != 0)
    return;
  log_warning(
      "checkpoints: expected to save after the last batch of a step, got a save within the one "
      "after step ",
      step,
      ", whose first batches come again after a resume; call it after the last: "
      "if (!batch.last) continue;");
}

// No gradient is recorded for what is copied.
std::string Checkpoints::write(int64_t step) {
  warn_within_step(step);
  warn_of_lower_step(*branch_, step, group());
  last_step_ = step;
  take_folder();
  check_folder(*training_, branch_->begun_by);
  if (steps_between_kept() > 0)
    keep(step);  // so what is in memory is never older than what is on the disk
  const Span span("checkpoint", Category::checkpoint);
  const NoGradGuard no_grad;
  const CheckpointsOptions& options = training_->options();
  const std::string& mine = branch_->begun_by;
  // A folder may have other trainings' checkpoints, which are not counted and stay.
  const SaveOptions save{
      .directory = options.folder,
      .keep_last = options.keep_last,
      .user = {{kRunId, options.run_id}, {kLaunch, options.launch}, {kBegunBy, mine}},
      .parent = file_name(branch_->path),
      .abandoned = branch_->abandoned,
      .metric = best_ ? best_->of_step(step) : std::nullopt,
      .best = best_path(),
      .is_own = [mine](const Manifest& manifest) { return training_of(manifest) == mine; }};
  const std::string path = store().save(save, step);
  if (group().rank() == 0)
    training_->saver().note_saved(mine, step);
  saved_at_ = Clock::now();
  return path;
}

void Checkpoints::finish() {
  const Span span("checkpoint", Category::checkpoint);
  finish_write();
}

// The ranks' clocks differ, so rank 0's decides for all.
bool Checkpoints::is_due(int64_t step) {
  const CheckpointsOptions& options = training_->options();
  const bool is_by_step = is_multiple(step, options.every);
  if (is_by_step || options.every_time.count() == 0)
    return is_by_step;
  const bool is_by_time = Clock::now() - saved_at_ >= options.every_time;
  return of_rank0(is_by_time ? 1 : 0, group()) != 0;
}

std::string Checkpoints::save_when_due(int64_t step) {
  if (training_->saver().says_that_it_saves())
    take_folder();
  last_step_ = step;
  if (is_due(step))
    return save(step);
  if (is_multiple(step, steps_between_kept()))
    keep(step);
  return "";
}

// All ranks ask whether to stop, at the same step; the answer is the same for all of them.
bool Checkpoints::save_or_stop(int64_t step) {
  take_folder();
  const bool is_saved = !save_when_due(step).empty();
  const auto& should_stop = training_->options().should_stop;
  if (!should_stop || !should_stop())
    return false;
  if (!is_saved)
    save(step);
  finish();
  if (group().rank() == 0)
    log_info("stopped after step ", step, ", which is saved: ", path());
  return true;
}

}  // namespace muster
