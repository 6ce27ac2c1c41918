// The leases of a run's tasks on this machine, and other jobs': a task's GPUs are leased as `muster
// run` leases a job's, by the share, and what other jobs hold is told, so that the schedule places
// nothing there. For LocalHost, and for the command where nothing is started.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/launch/lease.h"
#include "muster/tasks/schedule/device_pool.h"

namespace muster {

class ForeignLeases {
 public:
  // Other jobs have so many units of the pool's GPU now; 0: nothing any more.
  using Tell = std::function<void(int gpu, int units, const std::string& by)>;

  // `host`: which of the pool is this machine. Without `lease`, on simulated machines, and where
  // this machine is none of the pool's (-1), nothing is taken and nothing is looked at. Throws: as
  // LeaseFolder.
  ForeignLeases(const DevicePool& pool, int host, const std::string& run_id, bool lease, Tell tell);

  // The task's leases, none for a CPU task; nothing when another job was faster, which is told.
  // Throws: as LeaseFolder::try_take_all; the folder is then opened anew for the next ones.
  std::optional<Leases> take(const Allocation& where, const Task& task);

  // Looks again at what others hold, all GPUs the first time, then those that were held, now and
  // then.
  void look();

  // "GPU 3 is held by job 4f2a (…)", each.
  std::string describe() const;

 private:
  const PoolGpus& gpus() const { return pool_.hosts()[host_].gpus; }
  LeaseResult take_all(const Allocation& where, const LeaseNote& note);
  void hold_refused(const Allocation& where, const GpuUuid& uuid);
  void look_at(int gpu);
  void try_look_at(int gpu);

  const DevicePool& pool_;
  int host_;
  std::string run_id_;
  Tell tell_;
  bool inherits_ = false;  // this run is part of a job that has leases
  LeaseOptions options_;
  std::optional<LeaseFolder> folder_;
  bool said_ = false;                // that it cannot be looked at
  std::map<int, std::string> held_;  // by the GPU's place
  OptionalTime looked_;
};

}  // namespace muster
