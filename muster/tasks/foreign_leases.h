// The leases of a run's tasks, and other jobs': a task's GPUs are leased as `muster run` leases a job's, by
// the share, and what other jobs hold is told to the schedule, which places nothing there. For the runner.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/launch/lease.h"
#include "muster/tasks/run_view.h"

namespace muster {

class ForeignLeases {
 public:
  // Without `lease`, and on simulated machines, nothing is taken and nothing is looked at.
  // Throws: as LeaseFolder.
  ForeignLeases(Schedule& schedule, const std::string& run_id, bool lease);

  // The task's leases, none for a CPU task; nothing when another job was faster, which the schedule is told.
  // Throws: as LeaseFolder::try_take_all.
  std::optional<std::vector<Lease>> take(const Allocation& where, const Task& task);

  // Looks again at what others hold, all GPUs the first time, then those that were held, now and then.
  void look(RunView& view);
  void look();

  bool any() const { return !held_.empty(); }

  // "GPU 3 is held by job 4f2a (…)", each.
  std::string describe() const;

 private:
  using Place = std::pair<int, int>;  // host, GPU

  void look_at(const Place& place);

  Schedule& schedule_;
  std::string run_id_;
  bool inherits_ = false;  // this run is part of a job that has leases
  std::optional<LeaseFolder> folder_;
  std::map<Place, std::string> held_;
  std::optional<Clock::time_point> looked_;
  bool told_ = false;
};

}  // namespace muster
