// What a process changes about itself while it guards children: it becomes their subreaper, sees
// their deaths, survives a reader that went away, and may open as many files as it can. Kept by
// ProcessSet and ProcessPool, one at a time in a process.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "muster/base/no_copy.h"
#include "muster/supervise/descendants.h"

namespace muster {

class ParentState : NoCopy {
 public:
  ParentState();
  ~ParentState();  // everything is as it was

  // The limit of open files before, which children get back.
  const rlimit& old_open_files() const { return old_open_files_; }

  // Children of this process that were there before, and others that are not the guard's affair.
  const Pids& foreign() const { return foreign_; }
  void add_foreign(pid_t pid) { foreign_.insert(pid); }

 private:
  rlimit old_open_files_{};
  struct sigaction old_child_action_{};
  struct sigaction old_pipe_action_{};
  struct sigaction old_size_action_{};
  bool was_subreaper_ = false;
  Pids foreign_;
};

}  // namespace muster
