// The hosts of a run: this machine, and others by their connections. What becomes of tasks on any of them
// comes out of one `wait`. For the runner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/tasks/local_host.h"
#include "muster/tasks/remote_host.h"
#include "muster/tasks/run_view.h"
#include "muster/tasks/runner.h"

namespace muster {

class RunHosts {
 public:
  // Begins the run on every host. All three must outlive it.
  RunHosts(Schedule& schedule, const RunnerOptions& options, RunView& view);
  RunHosts(const RunHosts&) = delete;
  RunHosts& operator=(const RunHosts&) = delete;
  ~RunHosts();

  EventLoop& loop() { return local_.loop(); }

  // By the pool's number.
  TaskHost& at(int host);

  // Every host has told what other jobs hold there, or is lost. One round trip for all of them.
  bool ready() const;

  // What has ended, of all hosts. A host that was lost has been set aside in the schedule, and that was said.
  // Blocking: until something has happened or `until` has come.
  std::vector<TaskEnd> wait(Clock::time_point until);

  std::optional<int> take_signal() { return local_.take_signal(); }

  // Forgets the leases of an order that did not start.
  void forget(int id) { local_.forget(id); }

  // Looks at what other jobs hold, now and then, and says it when that begins.
  void look();
  bool any_held() const { return any_held_; }
  std::string held() const;

  // "b: ssh ended with exit code 255", each.
  const std::vector<std::string>& lost() const { return lost_; }

 private:
  LocalHostOptions options_of_local();
  void begin_remote(int number);
  void close_all();
  void on_lost(int number, const std::string& why);

  Schedule& schedule_;
  const RunnerOptions& options_;
  RunView& view_;
  LocalHost local_;
  std::vector<TaskEnd> remote_ends_;
  std::vector<std::string> lost_;
  bool any_held_ = false;
};

}  // namespace muster
