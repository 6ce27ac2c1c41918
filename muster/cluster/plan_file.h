// plan.json in a run's folder, as one of a job's hosts keeps it: the whole plan of the round that
// runs. The round's first host writes it; another one does where somebody asks there for all ranks.
// The folder may be the hosts' in common, so a host removes no other's file.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "muster/base/fd.h"
#include "muster/placement/plan.h"

namespace muster {

class PlanFile {
 public:
  // `given`: the file of --plan, which stays whatever happens; empty: none.
  explicit PlanFile(const std::string& run_dir, std::string given = "");

  // The round begins on this host. `whole`: its plan, on the first host. On another, the file goes
  // that this host has written of an earlier round. Throws: io.
  void begin_round(int round, const Plan* whole);

  // Writes it on a host that has got the whole plan of this round later. Nothing, if the round is
  // over, or is none of this host's any more. For any thread. Throws: io.
  void write_later(int round, const Plan& whole);

  // The job is over: the file stays as it is.
  void end();

  // The job goes on without this host: what it has written goes, until it has a part in a round
  // again.
  void leave();

 private:
  void write(const Plan& whole);
  void remove_own();

  const std::string path_;
  const std::string given_;
  std::mutex mutex_;
  std::optional<int> round_;  // in which this host has a part
  Fd own_;  // the file that this host has written; no other has its inode meanwhile
};

}  // namespace muster
