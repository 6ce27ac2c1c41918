// What every launcher does when it starts a job, on one host or as one of several.
#pragma once

#include "muster/launch/job_registry.h"
#include "muster/launch/launch.h"
#include "muster/launch/worker_spec.h"

namespace muster {

// Everything that can be found wrong without looking at the machine is found before anything is
// started. Throws: invalid_argument.
void check_launch(const LaunchOptions& options);

// What the output flags (--local-ranks-filter, --redirects, --tee) say of local ranks that the plan
// has on no host, in words; empty: nothing.
std::string unknown_local_ranks(const Plan& plan, const LaunchOptions& options);

// The plan as a table, or as JSON, before a start. Of a quiet job what is not where it was asked
// for alone.
void show_plan(const Plan& plan, const LaunchOptions& options, int fd);

// All that a dry run has to show of the plan, on standard output, and its picture. Throws: as
// about_model, before anything is printed.
void show_dry_run(const Inventory& inventory, const Plan& plan, const LaunchOptions& options);

// What `muster ps` is to show of this host's part of the job.
JobNote job_note(const LaunchOptions& options, const Plan& plan, const JobFacts& job);

}  // namespace muster
