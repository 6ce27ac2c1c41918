// The hosts of a job tell each other of their ranks, so that they need no common folder:
// samples, while `muster top` asks for them; a description of ranks that others wait for; and at
// the end what the ranks have written of their activity and events (`--trace`). Requests come from
// files (muster/trace/hosts_folder.h) and go to the hosts' agents through the job's store:
//
//   the host that asks    …/hosts/asked → an entry in the log ask/ID for each host, with a number
//   host ID               its next entry → samples its ranks → sample/ID/ASKER, with that number;
//                         sample/ID lists the askers
//   the host that asks    → …/hosts/<n>.sample
//
// Two threads do this. They may wait for the store, for a driver or for a file system, and the
// agent never waits for them while its ranks run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/placement/plan.h"
#include "muster/store/store.h"

namespace muster {

// Says what these ranks of this host do now, as bytes for `muster top`. Called in one thread, which
// may outlive the agent's part in the job.
using RankSampler = std::function<std::string(RankRange)>;

// All hosts of a round: their ids, the first host's first, and the ranks of each.
struct RoundHosts {
  Strings ids{};
  std::vector<RankRange> ranks{};
};

struct HostTelemetryOptions {
  std::string host{};  // this host's id
  int host_index = 0;
  int num_hosts = 1;
  RankRange ranks{};  // this host's
  // Called where somebody asks about other hosts: it may wait for the store, and throw what that
  // throws. It may outlive the agent's part in the job.
  std::function<RoundHosts()> all{};
  std::string run_dir{};
  std::string launch{};  // of the job
  RankSampler sampler{};
};

class HostTelemetry : NoCopy {
 public:
  HostTelemetry(SharedStore store, HostTelemetryOptions options);
  ~HostTelemetry();  // removes what is of use while ranks run; its threads end soon, and are not
                     // waited for

  // On all hosts but the first, when all ranks of this one have ended: leaves in the store what
  // they have written. Where the first host has the same folder, nothing. What cannot be left is no
  // error. Blocking: for the store's answers.
  void leave(int attempt);

  // On the first host, at the end of the job, when the others have left theirs: writes it where
  // report and trace find it, activity of the last attempt and events of all. Blocking: some
  // seconds; what has not come by then stays away, and that is said.
  void collect(int last_attempt);

  // At the end of this host's part, before the destructor: ends the threads. Blocking: a second at
  // most.
  void finish();

 private:
  struct State;
  bool is_first() const;
  bool shares_folder(int attempt) const;
  void leave_activity(int attempt);
  void leave_events();
  void collect_activity(const std::string& host, const RankRange& ranks, int attempt);
  void collect_events(const std::string& host);

  std::shared_ptr<State> state_;
};

// Removes what a host that has left the job has left in the store, and what it was asked. Throws:
// as Store.
void forget_host_telemetry(Store& store, const std::string& host);

}  // namespace muster
