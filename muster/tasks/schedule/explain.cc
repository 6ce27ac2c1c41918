#include "muster/tasks/schedule/explain.h"

#include <algorithm>

#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// "a, b, c and 4 more".
std::string named_list(std::vector<std::string> names) {
  constexpr size_t kMostNamed = 5;
  return join_first(std::move(names), ", ", kMostNamed);
}

}  // namespace

// Reads what the schedule keeps for itself.
class ScheduleExplainer {
 public:
  explicit ScheduleExplainer(const TaskSchedule& schedule) : schedule_(schedule) {}

  std::string explain(size_t task, double now) const;

 private:
  std::string explain_ready(size_t task) const;
  std::string explain_gpus(const TaskNeed& need, const TaskSchedule::Kind& kind) const;
  std::string explain_cpus(const TaskNeed& need, size_t task) const;
  std::string explain_reserved_cpus(int host, size_t task) const;
  std::vector<std::string> holders(int host, int gpu) const;

  const TaskSchedule& schedule_;
};

std::vector<std::string> ScheduleExplainer::holders(int host, int gpu) const {
  std::vector<std::string> names;
  for (const auto& [task, running] : schedule_.running_) {
    const auto& gpus = running.where.gpus;
    if (running.where.host == host && std::find(gpus.begin(), gpus.end(), gpu) != gpus.end())
      names.push_back(printable(schedule_.tasks_[task].name));
  }
  return names;
}

// One line for each GPU that is in question.
std::string ScheduleExplainer::explain_gpus(const TaskNeed& need,
                                            const TaskSchedule::Kind& kind) const {
  std::string text;
  const auto& hosts = schedule_.pool_.hosts();
  for (int h = 0; h < static_cast<int>(hosts.size()); ++h) {
    const auto& gpus = hosts[static_cast<size_t>(h)].gpus;
    for (int g = 0; g < static_cast<int>(gpus.size()); ++g) {
      const PoolGpu& gpu = gpus[static_cast<size_t>(g)];
      std::string why = schedule_.pool_.unfit(need, kind.wish.allowed, h, g);
      if (hosts[static_cast<size_t>(h)].set_aside)
        why = "is of a host that was lost";
      if (why.empty() && hosts[static_cast<size_t>(h)].slots_left < 1)
        why = "is of a host that runs as many tasks as it may";
      const std::vector<std::string> names = holders(h, g);
      if (why.empty() && gpu.leased_units > 0 && gpu.units_left - gpu.leased_units < units_of(need))
        why = cat("is ", gpu.leased_by);
      if (why.empty() && gpu.units_left < units_of(need))
        why = cat("has ", named_list(names));
      if (why.empty() && gpu.memory_left < need.memory_bytes)
        why = names.empty()
                  ? cat("has ",
                        format_bytes(gpu.memory_left),
                        " free: other programs use ",
                        format_bytes(gpu.memory_others),
                        " of its memory")
                  : cat("has ", format_bytes(gpu.memory_left), " left beside ", named_list(names));
      for (const Reservation& waits : schedule_.reservations_.all()) {
        const bool has =
            std::any_of(waits.claims.begin(), waits.claims.end(), [&](const Claim& claim) {
              return claim.host == h &&
                     std::find(claim.gpus.begin(), claim.gpus.end(), g) != claim.gpus.end();
            });
        if (why.empty() && has)
          why = cat("is reserved for ", printable(schedule_.tasks_[waits.task].name));
      }
      if (why.empty())
        why = "is free";
      text += cat("    GPU ",
                  gpu.index.value,
                  hosts.size() > 1 ? cat(" of ", hosts[static_cast<size_t>(h)].name) : "",
                  " ",
                  why,
                  "\n");
    }
  }
  return text;
}

std::string ScheduleExplainer::explain_cpus(const TaskNeed& need, size_t task) const {
  std::string text;
  for (size_t h = 0; h < schedule_.pool_.hosts().size(); ++h) {
    const PoolHost& host = schedule_.pool_.hosts()[h];
    if (host.set_aside || host.slots_left < 1) {
      text += cat("    host ",
                  host.name,
                  host.set_aside ? " was lost\n" : " runs as many tasks as it may\n");
      continue;
    }
    const std::string reserved = explain_reserved_cpus(static_cast<int>(h), task);
    const int cpus = schedule_.pool_.cpus_for(need, host);
    if (cpus == 0 || (reserved.empty() && host.cpus_left >= cpus))
      continue;
    std::vector<std::string> names;
    for (const auto& [other, running] : schedule_.running_) {
      if (running.where.host == static_cast<int>(h) && running.where.cpus > 0)
        names.push_back(printable(schedule_.tasks_[other].name));
    }
    text += cat("    ", host.cpus_left, " of ", host.cpus, " CPUs of ", host.name, " are free");
    if (!names.empty())
      text += cat(", ", named_list(names), names.size() == 1 ? " has" : " have", " the others");
    text += cat(reserved, "\n");
  }
  return text;
}

// "; 4 are reserved for a and b": the tasks before it.
std::string ScheduleExplainer::explain_reserved_cpus(int host, size_t task) const {
  std::vector<std::string> names;
  int cpus = 0;
  for (const Reservation& waits : schedule_.reservations_.all()) {
    if (!(schedule_.key_of(waits.task) < schedule_.key_of(task)))
      continue;
    for (const Claim& claim : waits.claims) {
      if (claim.host != host || claim.cpus == 0)
        continue;
      cpus += claim.cpus;
      if (names.empty() || names.back() != printable(schedule_.tasks_[waits.task].name))
        names.push_back(printable(schedule_.tasks_[waits.task].name));
    }
  }
  return names.empty()
             ? ""
             : cat("; ", cpus, cpus == 1 ? " is" : " are", " reserved for ", named_list(names));
}

std::string ScheduleExplainer::explain_ready(size_t task) const {
  const TaskSchedule::Kind& kind = schedule_.kinds_[schedule_.states_[task].kind];
  std::string text;
  for (size_t i = 0; i < kind.wish.needs.size(); ++i) {
    const TaskNeed& need = kind.wish.needs[i];
    text += cat(i == 0 ? "  it needs " : "  or ",
                describe(need),
                kind.on.empty() || need.gpus <= 0 ? std::string() : cat(" of ", printable(kind.on)),
                ":\n");
    if (need.gpus > 0)
      text += explain_gpus(need, kind);
    text += explain_cpus(need, task);
  }
  if (schedule_.options_.max_running > 0 &&
      schedule_.running_.size() >= static_cast<size_t>(schedule_.options_.max_running))
    text += cat("  no more than ", schedule_.options_.max_running, " tasks run at a time\n");
  size_t before = 0;
  for (const auto& [key, number] : schedule_.heads_) {
    if (key < schedule_.key_of(task))
      ++before;
  }
  if (!kind.ready.empty() && kind.ready.top().task != task) {
    text += cat("  before it comes ",
                printable(schedule_.tasks_[kind.ready.top().task].name),
                ", which needs the same\n");
  } else if (before > 0) {
    text += cat("  tasks with other needs come before it, first ",
                printable(schedule_.tasks_[schedule_.heads_.begin()->first.task].name),
                "\n");
  }
  return text;
}

std::string ScheduleExplainer::explain(size_t task, double now) const {
  const TaskSchedule::State& state = schedule_.states_[task];
  const std::string name = printable(schedule_.tasks_[task].name);
  if (state.state == TaskState::running) {
    const auto running = schedule_.running_.find(task);
    if (running == schedule_.running_.end())
      return cat(name, " has ended; its record is on its way to the disk\n");
    const PoolHost& host = schedule_.pool_.hosts()[static_cast<size_t>(running->second.where.host)];
    std::vector<std::string> devices;
    for (const int gpu : running->second.where.gpus)
      devices.push_back(cat("GPU ", host.gpus[static_cast<size_t>(gpu)].index.value));
    return cat(name,
               " runs since ",
               format_seconds(now - running->second.began),
               " on ",
               devices.empty() ? std::string("the CPU") : join(devices, ", "),
               " of ",
               host.name,
               "\n");
  }
  if (state.state != TaskState::waiting)
    return cat(name, " is ", to_string(state.state), "\n");
  if (schedule_.draining_)
    return cat(name, " waits: the run is being ended, nothing starts any more\n");
  if (state.missing > 0) {
    std::vector<std::string> before;
    for (const std::string& other : schedule_.tasks_[task].after) {
      const size_t at = schedule_.numbers_.at(other);
      if (schedule_.states_[at].state != TaskState::done)
        before.push_back(cat(printable(other), " (", to_string(schedule_.states_[at].state), ")"));
    }
    return cat(name, " waits for ", named_list(before), "\n");
  }
  for (const auto& [at, other] : schedule_.back_off_) {
    if (other != task || at <= now)
      continue;
    const std::string why =
        state.stops > 0 ? "stopped (exit code 75)" : cat("failed ", plural(state.failures, "time"));
    return cat(name, " ", why, " and starts again in ", format_seconds(at - now), "\n");
  }
  const TaskSchedule::Kind& kind = schedule_.kinds_[state.kind];
  for (const TaskNeed& need : kind.wish.needs) {
    const bool first = !kind.ready.empty() && kind.ready.top().task == task &&
                       !schedule_.heads_.empty() && schedule_.heads_.begin()->first.task == task;
    if (first && schedule_.has_slot() && schedule_.pool_.find(need, kind.wish.allowed))
      return cat(name, " can start now: ", describe(need), " can be had\n");
  }
  return cat(name, " waits for devices\n", explain_ready(task));
}

std::string explain(const TaskSchedule& schedule, size_t task, double now) {
  return ScheduleExplainer(schedule).explain(task, now);
}

}  // namespace muster
