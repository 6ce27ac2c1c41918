// Ranks as processes of one ProcessSet: starts them with their streams, and tells what is known of
// their ends. Each has a slot, which is its number in the set: a rank may be started again in the
// slot of one that has ended, and a process may become another rank of the job. For run_local_ranks
// alone.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_spec.h"
#include "muster/supervise/feed.h"
#include "muster/supervise/output.h"
#include "muster/supervise/process_set.h"

namespace muster {

class RankStarts {
 public:
  RankStarts(ProcessSet& processes, Output& output, Ints inherit_fds)
      : processes_(processes), output_(output), inherit_fds_(std::move(inherit_fds)) {}

  // To be called before these ranks start: makes the folder of their logs, and removes what an
  // earlier run's ranks have reported there, as a run may go on in the same folder. Throws: as
  // make_folder_below.
  void make_log_folder(const RankSpecs& specs);

  // Rank 0 gets the launcher's standard input. Throws: SpawnError, io.
  void start(int slot, const RankSpec& spec);
  // Carries no more of the standard input to rank 0.
  void close_input() { input_.reset(); }

  // The process that runs in the slot is this rank from now on.
  void become(int slot, const RankSpec& spec);

  // Whether another process was started since in the slot of this one.
  bool has_follower(pid_t pid) const;
  // Lets go of a process that has a follower, and of which nothing will be asked any more.
  void forget(pid_t pid);

  // The name that the process has in a store that tells of generations.
  std::string process_in(int slot) const;

  // The rank that the slot has now, or had last.
  int rank_in(int slot) const;

  // How the rank ended, without what it said last: its streams may hold more of that.
  RankExit in_short(const ChildExit& end) const;
  // How the rank ended, with its last lines.
  RankExit explained(const ChildExit& end) const;

 private:
  struct Started {
    int slot = 0;
    RankSpec spec;
    std::string process;
    std::string earlier_error_file{};       // of the rank that the process was before
    std::optional<Output::StreamId> out{};  // nothing: it is no pipe
    std::optional<Output::StreamId> err{};
    pid_t pid = -1;
    TimePoint at{};
  };
  Fd open_input();
  const Started& start_of(const ChildExit& end) const;
  size_t index_of(pid_t pid) const;  // in started_, or past its end
  size_t newest_in(int slot) const;  // of started_

  ProcessSet& processes_;
  Output& output_;
  std::optional<Feed> input_;  // where it is carried to rank 0
  Ints inherit_fds_;
  Fd log_folder_;
  std::vector<Started> started_;
};

}  // namespace muster
