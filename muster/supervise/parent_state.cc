// How it works: the constructor keeps what it changes, and the destructor puts it back in the
// opposite order. Children that are there before the first one is started are none of the guard's.
#include "muster/supervise/parent_state.h"

#include <sys/prctl.h>

namespace muster {

namespace {

// Every child costs several descriptors, and the usual soft limit is low for old programs' sake.
// Returns the limit before.
rlimit raise_open_files() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit most = {.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &most);
  return before;
}

struct sigaction action_with(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  return action;
}

}  // namespace

ParentState::ParentState() : old_open_files_(raise_open_files()) {
  // An ignored SIGCHLD, inherited through exec, would have the kernel reap children before we see
  // them.
  const struct sigaction standard = action_with(SIG_DFL);
  ::sigaction(SIGCHLD, &standard, &old_child_action_);
  // A reader of our output that went away is an error of write, not our end.
  const struct sigaction ignored = action_with(SIG_IGN);
  ::sigaction(SIGPIPE, &ignored, &old_pipe_action_);
  ::sigaction(SIGXFSZ, &ignored, &old_size_action_);  // nor is a limit of file sizes
  int subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  was_subreaper_ = subreaper != 0;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  foreign_ = own_children();
}

ParentState::~ParentState() {
  if (!was_subreaper_)
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::sigaction(SIGXFSZ, &old_size_action_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_action_, nullptr);
  ::sigaction(SIGCHLD, &old_child_action_, nullptr);
  ::setrlimit(RLIMIT_NOFILE, &old_open_files_);
}

}  // namespace muster
