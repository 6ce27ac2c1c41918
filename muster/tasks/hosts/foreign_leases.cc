#include "muster/tasks/hosts/foreign_leases.h"

#include <utility>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/tasks/hosts/task_process.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kLookEvery{500};

}  // namespace

ForeignLeases::ForeignLeases(
    const Pool& pool, int host, const std::string& run_id, bool lease, Tell tell)
    : pool_(pool), host_(host), run_id_(run_id), tell_(std::move(tell)) {
  if (!lease || host < 0 || pool.inventory().simulated || gpus().empty())
    return;
  const auto inherited = get_env(kLeaseVariable);
  inherits_ = inherited.has_value();
  options_.inherited = inherited.value_or("");
  folder_.emplace(options_);
}

std::optional<std::vector<Lease>> ForeignLeases::take(const Allocation& where, const Task& task) {
  if (!folder_ || where.gpus.empty())
    return std::vector<Lease>();
  LeaseResult result =
      take_all(where, {.job = run_id_, .program = task.name, .memory_bytes = where.memory_bytes});
  if (result.busy.empty())
    return std::move(result.leases);
  for (const int gpu : where.gpus)
    try_look_at(gpu);
  // Who held it may have let go since; looked at again, it is free.
  for (const LeaseRefusal& refusal : result.busy) {
    for (const int gpu : where.gpus) {
      if (gpus()[gpu].uuid != refusal.gpu || held_.contains(gpu))
        continue;
      held_[gpu] = "held by another job a moment ago";
      tell_(gpu, kWholeGpu, held_[gpu]);
    }
  }
  return std::nullopt;
}

LeaseResult ForeignLeases::take_all(const Allocation& where, const LeaseNote& note) {
  try {
    return folder_->try_take_all(lease_wishes_of(pool_, where), note);
  } catch (const Error& error) {
    std::vector<int> indices;
    for (const int gpu : where.gpus)
      indices.push_back(gpus()[gpu].index.value);
    const Error told(error.code(),
                     cat(error.message(),
                         " (GPU ",
                         join(indices, ","),
                         " of ",
                         pool_.hosts()[host_].name,
                         "); check that ",
                         folder_->path(),
                         " can be written and its disk has room, or give --no-lease"));
    try {
      folder_ = LeaseFolder(options_);  // somebody may have removed it
    } catch (const Error&) {
      throw told;  // and so will the next
    }
    throw told;
  }
}

// What cannot be seen is in nobody's way: a lease that is held refuses the start.
void ForeignLeases::try_look_at(int gpu) {
  try {
    look_at(gpu);
  } catch (const Error& error) {
    if (!std::exchange(said_, true))
      log(LogLevel::warn, cat("cannot see which GPUs other jobs hold: ", error.message()));
  }
}

void ForeignLeases::look_at(int gpu) {
  int units = 0;
  std::vector<std::string> names;
  for (const LeaseHolder& holder : folder_->holders(gpus()[gpu].uuid)) {
    // An earlier runner of this run may have left something, which has its lease.
    if (holder.note && holder.note->job == run_id_ && holder.alive)
      continue;
    units += holder.units;
    names.push_back(muster::describe(holder));
  }
  const std::string by = units == 0 ? std::string() : cat("held by ", join(names, "; "));
  tell_(gpu, units, by);
  if (units == 0) {
    held_.erase(gpu);
  } else {
    held_[gpu] = by;
  }
}

void ForeignLeases::look() {
  if (!folder_ || (looked_ && (held_.empty() || Clock::now() - *looked_ < kLookEvery)))
    return;
  for (int gpu = 0; gpu < static_cast<int>(gpus().size()); ++gpu) {
    if (looked_ ? held_.contains(gpu) : !inherits_)
      try_look_at(gpu);
  }
  looked_ = Clock::now();
}

std::string ForeignLeases::describe() const {
  std::vector<std::string> lines;
  for (const auto& [gpu, by] : held_)
    lines.push_back(cat("GPU ", gpus()[gpu].index.value, " is ", by));
  return join(lines, ", ");
}

}  // namespace muster
