// The launcher tells its ranks' activity when a job has ended: where the time of their steps went,
// in words and as breakdown.json, and one trace of all, where they traced.
#pragma once

#include <string>

#include "muster/launch/rank_spec.h"

namespace muster {

// `quiet`: files alone. `first_host`: rank 0 is here. Hosts that share a folder leave it to that
// one. What cannot be written is logged, and no error: the exit code holds.
void tell_activity(const JobFacts& job, int attempt, bool quiet, bool first_host = true);

// Makes a trace of what an earlier launch in the folder has left, whose launcher was killed, and
// says so. Then removes it.
void keep_earlier_trace(const std::string& work_dir);

// Makes a trace of what the ranks of a job have left whose launcher was killed. What it is, in
// words; empty: they have left nothing. Throws: io.
std::string merge_left_trace(const std::string& run_dir);

}  // namespace muster
