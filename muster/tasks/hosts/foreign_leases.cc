// Leases are files that the kernel locks (launch/lease.h). Taking one tells whether another job has
// the GPU; looking at the holders tells who, and how much. A GPU that was free at the first look is
// not looked at again: should another job take it, the start that wants it is refused, and it is
// known from then on.
#include "muster/tasks/hosts/foreign_leases.h"

#include <utility>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/tasks/hosts/task_process.h"

namespace muster {

namespace {

constexpr milliseconds kLookEvery{500};

}  // namespace

ForeignLeases::ForeignLeases(
    const DevicePool& pool, int host, const std::string& run_id, bool lease, Tell tell)
    : pool_(pool), host_(host), run_id_(run_id), tell_(std::move(tell)) {
  const bool is_real = host >= 0 && !pool.inventory().simulated;
  if (!lease || !is_real || gpus().empty())
    return;
  const auto inherited = get_env(kLeaseVariable);
  inherits_ = inherited.has_value();
  options_.inherited = inherited.value_or("");
  folder_.emplace(options_);
}

// A start that was refused has all of its GPUs looked at, so that the schedule knows who has them.
std::optional<Leases> ForeignLeases::take(const Allocation& where, const Task& task) {
  if (!folder_ || where.gpus.empty())
    return Leases();
  LeaseResult result =
      take_all(where, {.job = run_id_, .program = task.name, .memory_bytes = where.memory_bytes});
  if (result.busy.empty())
    return std::move(result.leases);
  for (const int gpu : where.gpus)
    try_look_at(gpu);
  for (const LeaseRefusal& refusal : result.busy)
    hold_refused(where, refusal.gpu);
  return std::nullopt;
}

// Whoever held the GPU may have let go since. It counts as held all the same until it is looked at
// again, so that the schedule tries another one first.
void ForeignLeases::hold_refused(const Allocation& where, const GpuUuid& uuid) {
  for (const int gpu : where.gpus) {
    if (gpus()[gpu].uuid != uuid || held_.contains(gpu))
      continue;
    held_[gpu] = "held by another job a moment ago";
    tell_(gpu, kWholeGpu, held_[gpu]);
  }
}

// The folder may have been removed by somebody: after an error it is opened anew for the next ones.
LeaseResult ForeignLeases::take_all(const Allocation& where, const LeaseNote& note) {
  try {
    return folder_->try_take_all(lease_wishes_of(pool_, where), note);
  } catch (const Error& error) {
    const auto indices = mapped(where.gpus, [&](const int gpu) { return gpus()[gpu].index.value; });
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
      folder_ = LeaseFolder(options_);
    } catch (const Error&) {
      throw told;  // and so will the next
    }
    throw told;
  }
}

// A GPU that cannot be looked at is taken for free: a lease that is held refuses the start.
void ForeignLeases::try_look_at(int gpu) {
  try {
    look_at(gpu);
  } catch (const Error& error) {
    if (!std::exchange(said_, true))
      log_warning("cannot see which GPUs other jobs hold: ", error.message());
  }
}

// Reckons what others hold of the GPU, and tells it in any case: it may have changed.
void ForeignLeases::look_at(int gpu) {
  int units = 0;
  Strings names;
  for (const LeaseHolder& holder : folder_->holders(gpus()[gpu].uuid)) {
    // Processes that an earlier runner of this run has left hold their lease still.
    const bool is_ours = holder.note && holder.note->job == run_id_;
    if (is_ours && holder.alive)
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
  if (!folder_)
    return;
  const bool is_first = !looked_;
  if (!is_first && (held_.empty() || Clock::now() - *looked_ < kLookEvery))
    return;
  // The GPUs of a job that this run is part of are held by that job, and the run's all the same.
  for (const int gpu : int_indices_of(gpus())) {
    if (is_first ? !inherits_ : held_.contains(gpu))
      try_look_at(gpu);
  }
  looked_ = Clock::now();
}

std::string ForeignLeases::describe() const {
  const auto line_of = [this](const auto& held) {
    return cat("GPU ", gpus()[held.first].index.value, " is ", held.second);
  };
  return join(mapped(held_, line_of), ", ");
}

}  // namespace muster
