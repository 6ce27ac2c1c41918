// The hosts of a run: this machine, and others by their connections. What becomes of tasks on any
// of them comes out of one `wait`. A host that is lost is set aside in the schedule, and brought
// back when it has been reached again. For the runner.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/tasks/hosts/local_host.h"
#include "muster/tasks/hosts/remote_host.h"
#include "muster/tasks/hosts/retry.h"
#include "muster/tasks/report/run_view.h"
#include "muster/tasks/runner.h"

namespace muster {

class RunHosts : NoCopy {
 public:
  // Takes down a MUSTER_MARK that a host's tasks have from then on, for a run that goes on later:
  // it must be known when this returns.
  using Record = TextFunction;

  // Begins the run on every host. All of these must outlive it.
  RunHosts(TaskSchedule& schedule, const RunnerOptions& options, RunView& view, Record record);
  ~RunHosts();

  EventLoop& loop() { return local_.loop(); }

  // The host by the pool's number.
  TaskHost& at(int host);

  // Every host has told what other jobs hold there, or is lost. One round trip for all of them.
  bool ready() const;

  // The tasks that have ended, of all hosts. A host that was lost meanwhile has been set aside, and
  // that was said. Blocking: until something has happened or `until` has come.
  TaskEnds wait(TimePoint until);

  std::optional<int> take_signal() { return local_.take_signal(); }

  // Forgets the leases of an order that did not start.
  void forget(int id) { local_.forget(id); }

  // Looks at what other jobs hold, now and then, and says it when that begins.
  void look();
  bool any_held() const { return any_held_; }
  // Others' holdings, in words: also memory that other programs use, where a task waits for it.
  std::string held() const;

  // "b: ssh ended with exit code 255", each.
  Strings lost() const;

  // Goes on with connecting to hosts that were lost, never waiting. Throws: what `Record` throws.
  void try_lost();
  void stop_trying();
  bool tries_any() const;

 private:
  LocalHostOptions options_of_local();
  ForeignLeases::Tell tell_held_of(int number);
  MemoryWatch::Tell tell_memory_of(int number);
  void pass_on(int signal) const;
  void begin_remote(int number);
  void begin_again(int number, RemoteHost& host);
  void begin(int number, RemoteHost& host);
  void close_all();
  std::string memory_in_use() const;
  void on_lost(int number, const std::string& why);
  void take_back(int number, HostRetry& retry);
  bool is_connection(pid_t pid) const;

  TaskSchedule& schedule_;
  const RunnerOptions& options_;
  RunView& view_;
  Record record_;
  RemoteHosts none_;
  // The connections by the pool's hosts. Null is this machine, which is the only one where there
  // are none.
  RemoteHosts& remote_;
  std::map<int, HostRetry> retries_;
  // Every MUSTER_MARK that tasks of each remote host have had, the present one last.
  std::map<int, Strings> marks_;
  int num_marks_ = 0;  // beside the run's own
  LocalHost local_;
  TaskEnds remote_ends_;
  bool any_held_ = false;
};

}  // namespace muster
