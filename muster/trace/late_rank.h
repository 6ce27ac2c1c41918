// What is said of ranks that others wait for: what each does, in words, and where its main thread
// is. Beside the warning of muster/base/late_ranks.h, in a thread of its own, so that who waits
// goes on as soon as they come.
#pragma once

#include <cstdint>
#include <string>

#include "muster/trace/rank_process.h"
#include "muster/trace/read_activity.h"

namespace muster {

// "rank 2: in tokenize for 21.0s; last all_reduce #41 f32[1000], ended 22.0s ago".
std::string describe_rank(const ActivityView& view, ProcessState state, int64_t now_ns);

// The same of the rank whose activity file this is, with its main thread's stack, if the rank is on
// this host. Blocking: some seconds. Throws: io, invalid_argument.
std::string describe_late_rank(const std::string& activity_path);

// From now on late ranks are described, once a wait, of the run folder that this process's activity
// is in. Ranks of other hosts are described there, by their agents, if there are agents
// (hosts_folder.h). Where `names_are_the_jobs` is false, groups of some ranks have numbers of their
// own, and nothing is said of those.
void describe_late_ranks(bool names_are_the_jobs);

}  // namespace muster
