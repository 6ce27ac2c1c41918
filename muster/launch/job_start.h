// The beginning of every launcher, on one host or as one of several.
#pragma once

#include <string>

#include "muster/launch/job_registry.h"
#include "muster/launch/launch.h"
#include "muster/launch/rank_spec.h"

namespace muster {

// An error about an output flag (--local-ranks-filter, --redirects, --tee) that names a local rank
// which the plan has on no host; empty: there is none.
std::string unknown_local_ranks(const Plan& plan, const LaunchOptions& options);

// The plan as a table, or as JSON, before a start. Of a quiet job what is not where it was asked
// for alone.
void show_plan(const Plan& plan, const LaunchOptions& options, int fd);

// All that a dry run has to show of the plan, on standard output, and its picture. Throws: as
// about_model, before anything is printed.
void show_dry_run(const Inventory& inventory, const Plan& plan, const LaunchOptions& options);

// This host's part of the job, for `muster ps`.
JobNote job_note(const LaunchOptions& options, const Plan& plan, const JobFacts& job);

}  // namespace muster
