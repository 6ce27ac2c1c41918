// A task that waits is explained from the outside in: what it waits for by the rules of the
// schedule (an end, other tasks, a pause), and then, for each of its alternatives, what every GPU
// and every host has in its way. The reservations are those of the schedule's last pass.
#include "muster/tasks/schedule/explain.h"

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// "a, b, c and 4 more".
std::string named_list(Strings names) {
  constexpr size_t kMostNamed = 5;
  return join_first(std::move(names), ", ", kMostNamed);
}

// Why a GPU that has units enough has too little memory. `names` are the tasks on it.
std::string explain_memory(const PoolGpu& gpu, const TaskNeed& need, const Strings& names) {
  const std::string left = format_compared_bytes({gpu.memory_left, need.memory_bytes})[0];
  if (!names.empty())
    return cat("has ", left, " left beside ", named_list(names));
  return cat("has ",
             left,
             " free: other programs use ",
             format_bytes(gpu.memory_others),
             " of its memory");
}

// Whether the reservation has the GPU on one of its places.
bool reserves(const Reservation& reservation, int host, int gpu) {
  return any_of(reservation.claims, [&](const Claim& claim) {
    return claim.host == host && contains(claim.gpus, gpu);
  });
}

// The CPUs of the host that the reservation has.
int reserved_cpus(const Reservation& reservation, int host) {
  return sum_of<int>(reservation.claims,
                     [&](const Claim& claim) { return claim.host == host ? claim.cpus : 0; });
}

}  // namespace

// A friend of the schedule, which reads what that keeps for itself.
class ScheduleExplainer {
 public:
  explicit ScheduleExplainer(const TaskSchedule& schedule)
      : schedule_(schedule), hosts_(schedule.pool_.hosts()) {}

  // The rules of the schedule are asked in the order in which they apply.
  std::string explain(size_t task, double now) const {
    const TaskSchedule::State& state = schedule_.states_[task];
    if (state.state == TaskState::running)
      return explain_running(task, now);
    if (state.state != TaskState::waiting)
      return cat(name(task), " is ", to_string(state.state), "\n");
    if (schedule_.draining_)
      return cat(name(task), " waits: the run is being ended, nothing starts any more\n");
    if (state.missing > 0)
      return explain_missing(task);
    if (std::string pause = explain_pause(task, now); !pause.empty())
      return pause;
    if (std::string next = explain_next(task); !next.empty())
      return next;
    return cat(name(task), " waits for devices\n", explain_ready(task));
  }

 private:
  std::string name(size_t task) const { return printable(schedule_.tasks_[task].name); }

  // The running tasks whose devices are as `holds` asks.
  Strings names_running(const auto& holds) const {
    Strings names;
    for (const auto& [task, running] : schedule_.running_) {
      if (holds(running.where))
        names.push_back(name(task));
    }
    return names;
  }

  // The tasks that have a part of the GPU.
  Strings names_on_gpu(int host, int gpu) const {
    return names_running(
        [&](const Allocation& where) { return where.host == host && contains(where.gpus, gpu); });
  }

  // The tasks that count CPUs of the host.
  Strings names_on_cpus(int host) const {
    return names_running(
        [&](const Allocation& where) { return where.host == host && where.cpus > 0; });
  }

  // Each GPU of the pool gets a line.
  std::string explain_gpus(const TaskNeed& need, const AllowedGpus& allowed) const {
    std::string text;
    for (const int h : int_indices_of(hosts_)) {
      const PoolHost& host = hosts_[h];
      const auto of_host = hosts_.size() > 1 ? cat(" of ", host.name) : "";
      for (const int g : int_indices_of(host.gpus)) {
        const auto why = explain_gpu(need, allowed, h, g);
        text += cat("    GPU ", host.gpus[g].index.value, of_host, " ", why, "\n");
      }
    }
    return text;
  }

  // Says what keeps the GPU from the need, or "is free". Of several reasons the one that lasts
  // longest is said.
  std::string explain_gpu(const TaskNeed& need,
                          const AllowedGpus& allowed,
                          int host,
                          int gpu) const {
    const PoolGpu& it = hosts_[host].gpus[gpu];
    if (hosts_[host].set_aside)
      return "is of a host that was lost";
    if (std::string why = schedule_.pool_.unfit(need, allowed, host, gpu); !why.empty())
      return why;
    if (hosts_[host].slots_left < 1)
      return "is of a host that runs as many tasks as it may";
    const int units = units_of(need);
    if (it.leased_units > 0 && it.units_left - it.leased_units < units)
      return cat("is ", it.leased_by);
    const Strings names = names_on_gpu(host, gpu);
    if (it.units_left < units)
      return cat("has ", named_list(names));
    if (it.memory_left < need.memory_bytes)
      return explain_memory(it, need, names);
    const Reservation* const waits =
        element_where(schedule_.reservations_.all(),
                      [&](const Reservation& one) { return reserves(one, host, gpu); });
    return waits == nullptr ? "is free" : cat("is reserved for ", name(waits->task));
  }

  // Hosts that are in nobody's way get no line.
  std::string explain_cpus(const TaskNeed& need, size_t task) const {
    std::string text;
    for (const int h : int_indices_of(hosts_))
      text += explain_host(h, need, task);
    return text;
  }

  // A line if the host, or its CPUs, are in the task's way; else empty.
  std::string explain_host(int host, const TaskNeed& need, size_t task) const {
    const PoolHost& it = hosts_[host];
    if (it.set_aside)
      return cat("    host ", it.name, " was lost\n");
    if (it.slots_left < 1)
      return cat("    host ", it.name, " runs as many tasks as it may\n");
    const auto reserved = explain_reserved_cpus(host, task);
    const int cpus = schedule_.pool_.cpus_for(need, it);
    if (cpus == 0 || (reserved.empty() && it.cpus_left >= cpus))
      return "";
    auto text =
        cat("    ", it.cpus_left, " of ", plural(it.cpus, "CPU"), " of ", it.name, " are free");
    const Strings names = names_on_cpus(host);
    if (!names.empty())
      text += cat(", ", named_list(names), word_for(names.size(), " has", " have"), " the others");
    return cat(text, reserved, "\n");
  }

  // "; 4 are reserved for a and b", which are tasks that come before this one. Empty: none are.
  std::string explain_reserved_cpus(int host, size_t task) const {
    Strings names;
    int cpus = 0;
    for (const Reservation& waits : schedule_.reservations_.all()) {
      const int reserved = reserved_cpus(waits, host);
      const bool comes_before = schedule_.key_of(waits.task) < schedule_.key_of(task);
      if (reserved == 0 || !comes_before)
        continue;
      cpus += reserved;
      names.push_back(name(waits.task));
    }
    if (names.empty())
      return "";
    return cat("; ", cpus, word_for(cpus, " is", " are"), " reserved for ", named_list(names));
  }

  // The task waits for devices alone: what is in the way of each of its alternatives.
  std::string explain_ready(size_t task) const {
    const TaskSchedule::Kind& kind = schedule_.kind_of(task);
    std::string text;
    for (const TaskNeed& need : kind.wish.needs) {
      text += cat(text.empty() ? "  it needs " : "  or ", describe(need));
      if (need.gpus > 0) {
        text += cat(framed(" of ", printable(kind.on)), ":\n");
        text += explain_gpus(need, kind.wish.allowed);
      } else {
        text += ":\n";
      }
      text += explain_cpus(need, task);
    }
    if (schedule_.is_at_limit())
      text += cat("  no more than ", schedule_.options_.max_running, " tasks run at a time\n");
    return text + explain_order(task);
  }

  // Which tasks come before it in the schedule's order; empty: none.
  std::string explain_order(size_t task) const {
    const auto& ready = schedule_.kind_of(task).ready;
    if (!ready.empty() && ready.top().task != task)
      return cat("  before it comes ", name(ready.top().task), ", which needs the same\n");
    const bool is_first =
        schedule_.heads_.empty() || !(schedule_.heads_.begin()->first < schedule_.key_of(task));
    if (is_first)
      return "";
    return cat("  tasks with other needs come before it, first ",
               name(schedule_.heads_.begin()->first.task),
               "\n");
  }

  // The record of an end is on its way to the disk while the task has no devices any more.
  std::string explain_running(size_t task, double now) const {
    const auto found = schedule_.running_.find(task);
    if (found == schedule_.running_.end())
      return cat(name(task), " has ended; its record is on its way to the disk\n");
    const auto& [where, began] = found->second;
    const PoolHost& host = hosts_[where.host];
    const auto gpus =
        mapped(where.gpus, [&](const int gpu) { return cat("GPU ", host.gpus[gpu].index.value); });
    return cat(name(task),
               " runs since ",
               format_seconds(now - began),
               " on ",
               text_or(join(gpus, ", "), "the CPU"),
               " of ",
               host.name,
               "\n");
  }

  // The tasks that it comes after and that are not done.
  std::string explain_missing(size_t task) const {
    Strings before;
    for (const auto& other : schedule_.tasks_[task].after) {
      const TaskState state = schedule_.state(schedule_.numbers_.at(other));
      if (state != TaskState::done)
        before.push_back(cat(printable(other), " (", to_string(state), ")"));
    }
    return cat(name(task), " waits for ", named_list(before), "\n");
  }

  // The pause after a failure or a stop; empty: the task is in none.
  std::string explain_pause(size_t task, double now) const {
    const TaskSchedule::State& state = schedule_.states_[task];
    const auto* const pause = element_where(schedule_.back_off_, [&](const auto& one) {
      return one.second == task && one.first > now;
    });
    if (pause == nullptr)
      return "";
    const std::string why =
        state.stops > 0 ? "stopped (exit code 75)" : cat("failed ", plural(state.failures, "time"));
    const double left = pause->first - now;
    return cat(name(task), " ", why, " and starts again in ", format_seconds(left), "\n");
  }

  // Says that the next pass of the schedule would start the task; empty: it would not.
  std::string explain_next(size_t task) const {
    const auto& heads = schedule_.heads_;
    const bool leads_all = !heads.empty() && heads.begin()->first.task == task;
    if (!leads_all || !schedule_.has_slot())
      return "";
    const TaskWish& wish = schedule_.kind_of(task).wish;
    const TaskNeed* const found = element_where(wish.needs, [&](const TaskNeed& need) {
      return schedule_.pool_.find(need, wish.allowed).has_value();
    });
    if (found == nullptr)
      return "";
    return cat(name(task), " can start now: ", describe(*found), " can be had\n");
  }

  const TaskSchedule& schedule_;
  const PoolHosts& hosts_;
};

std::string explain(const TaskSchedule& schedule, size_t task, double now) {
  return ScheduleExplainer(schedule).explain(task, now);
}

}  // namespace muster
