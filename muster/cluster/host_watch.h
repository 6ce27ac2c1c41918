// Asks a command again and again which hosts there are (`--host-discovery`), without waiting for
// it: one that hangs holds up nothing but its own answer.
#pragma once

#include <functional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/cluster/hostfile.h"
#include "muster/supervise/command_output.h"
#include "muster/supervise/process_set.h"

namespace muster {

// The hosts that the command lists now. Blocking: until it has ended, or the patience has; then it
// is killed. Throws: io when it fails; timeout; as parse_hostfile.
HostSpecs discover_hosts(const std::string& command, milliseconds patience = kAnswerOfCommand);

class HostWatch : NoCopy {
 public:
  using OnHosts = std::function<void(const HostSpecs&)>;

  // Asks in a child of `processes` with this id, from the next answer on. An answer that is none is
  // said, and asked for again.
  HostWatch(ProcessSet& processes, int id, const std::string& command, OnHosts on_hosts);
  ~HostWatch() { processes_.loop().cancel(watch_); }

  // Asks no more. The set then need not wait for the child.
  void stop();

 private:
  void read_some();
  bool take_answer();
  void take(const std::string& answer);

  ProcessSet& processes_;
  int id_;
  std::string command_;
  OnHosts on_hosts_;
  Fd answers_;
  std::string read_;
  EventLoop::Handle watch_ = 0;
};

}  // namespace muster
