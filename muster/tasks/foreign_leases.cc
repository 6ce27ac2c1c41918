#include "muster/tasks/foreign_leases.h"

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/tasks/task_process.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kLookEvery{500};

}  // namespace

ForeignLeases::ForeignLeases(Schedule& schedule, const std::string& run_id, bool lease)
    : schedule_(schedule), run_id_(run_id) {
  if (!lease || schedule.pool().inventory().simulated || schedule.pool().num_gpus() == 0) return;
  const auto inherited = get_env(kLeaseVariable);
  inherits_ = inherited.has_value();
  folder_.emplace(LeaseOptions{.inherited = inherited.value_or("")});
}

std::optional<std::vector<Lease>> ForeignLeases::take(const Allocation& where, const Task& task) {
  if (!folder_ || where.gpus.empty()) return std::vector<Lease>();
  LeaseResult result =
      folder_->try_take_all(lease_wishes_of(schedule_.pool(), where),
                            {.job = run_id_, .program = task.name, .memory_bytes = where.memory_bytes});
  if (result.busy.empty()) return std::move(result.leases);
  for (const int gpu : where.gpus) look_at({where.host, gpu});
  // Who held it may have let go since; looked at again, it is free.
  for (const LeaseRefusal& refusal : result.busy) {
    for (const int gpu : where.gpus) {
      const Place place{where.host, gpu};
      if (schedule_.pool().hosts()[static_cast<size_t>(where.host)].gpus[static_cast<size_t>(gpu)].uuid !=
          refusal.gpu)
        continue;
      if (held_.contains(place)) continue;
      held_[place] = "held by another job a moment ago";
      schedule_.set_held(where.host, gpu, kWholeGpu, held_[place]);
    }
  }
  return std::nullopt;
}

void ForeignLeases::look_at(const Place& place) {
  const PoolGpu& gpu =
      schedule_.pool().hosts()[static_cast<size_t>(place.first)].gpus[static_cast<size_t>(place.second)];
  int units = 0;
  std::vector<std::string> names;
  for (const LeaseHolder& holder : folder_->holders(gpu.uuid)) {
    if (holder.note && holder.note->job == run_id_) continue;
    units += holder.units;
    names.push_back(muster::describe(holder));
  }
  const std::string by = units == 0 ? std::string() : cat("held by ", join(names, "; "));
  schedule_.set_held(place.first, place.second, units, by);
  if (units == 0) {
    held_.erase(place);
  } else {
    held_[place] = by;
  }
}

void ForeignLeases::look() {
  if (!folder_ || (looked_ && (held_.empty() || Clock::now() - *looked_ < kLookEvery))) return;
  const auto& hosts = schedule_.pool().hosts();
  for (int h = 0; h < static_cast<int>(hosts.size()); ++h) {
    for (int g = 0; g < static_cast<int>(hosts[static_cast<size_t>(h)].gpus.size()); ++g) {
      if (looked_ ? held_.contains({h, g}) : !inherits_) look_at({h, g});
    }
  }
  looked_ = Clock::now();
}

void ForeignLeases::look(RunView& view) {
  look();
  if (!held_.empty() && !told_) view.note(cat("other jobs have GPUs that are waited for: ", describe()));
  told_ = !held_.empty();
}

std::string ForeignLeases::describe() const {
  std::vector<std::string> lines;
  for (const auto& [place, by] : held_) {
    const PoolGpu& gpu =
        schedule_.pool().hosts()[static_cast<size_t>(place.first)].gpus[static_cast<size_t>(place.second)];
    lines.push_back(cat("GPU ", gpu.index.value, " is ", by));
  }
  return join(lines, ", ");
}

}  // namespace muster
