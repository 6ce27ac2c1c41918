// The section of the environment: which command ran, on which machines, with which software.
#include <string>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"
#include "muster/report/number_text.h"

namespace muster {
namespace {

// Returns each host of the plan once, in the order of its ranks.
std::string hosts_of(const JobRun& run) {
  return run.plan ? join_first(distinct(run.plan->ranks, &RankPlan::host), ", ", 16) : "";
}

// One line for the machine that the launcher has recorded: its cores, its GPUs, its driver.
std::string machine_of(const Host& host) {
  auto text = plural(host.num_cores, "core");
  if (!host.gpus.empty())
    text += cat(", ", plural(host.gpus.size(), "GPU"), " (", host.gpus.front().model, ")");
  if (!host.driver_version.empty())
    text += cat(", driver ", host.driver_version);
  // The note says why there are no GPUs.
  if (host.gpus.empty() && !host.gpu_note.empty())
    text += cat("; ", host.gpu_note);
  return text;
}

// The software that the ranks computed with.
struct Software {
  std::string libtorch;
  std::string backend;
  Strings devices;
};

// The launcher records the software when a launch ends. Of a launch that goes on, the ranks' own
// files tell it.
Software software_of(const JobRun& run, const LaunchRecord& launch) {
  if (!launch.libtorch.empty())
    return {launch.libtorch, launch.backend, launch.device_names};
  Software software;
  StringSet names;
  for (const ActivityView& rank : run.ranks) {
    if (rank.libtorch.empty())
      continue;
    software.libtorch = rank.libtorch;
    software.backend = rank.backend;
    if (names.insert(rank.device_name).second)
      software.devices.push_back(rank.device_name);
  }
  return software;
}

}  // namespace

std::string environment_section(const JobRun& run) {
  std::vector<Fact> facts;
  if (const LaunchRecord* const launch = run.last_launch()) {
    facts.push_back({"Command", shell_command(launch->argv), true});
    for (const auto& more : launch->more_argvs)
      facts.push_back({"And", shell_command(more), true});
    facts.push_back({"Ran in", launch->work_dir, true});
    facts.push_back({"Run", launch->run_id});
    facts.push_back({"Started", wall_time_text(launch->began)});
    facts.push_back({"Ended", launch->ended ? wall_time_text(*launch->ended) : ""});
    facts.push_back({"Launcher", cat("host ", launch->host, ", pid ", launch->pid)});
    facts.push_back({"muster", launch->muster_version});
    const auto [libtorch, backend, devices] = software_of(run, *launch);
    if (!libtorch.empty())
      facts.push_back({"LibTorch", libtorch});
    if (!backend.empty())
      facts.push_back({"Backend", backend});
    if (!devices.empty())
      facts.push_back({"Devices", join_first(devices, ", ", 16)});
  }
  facts.push_back({"Hosts", hosts_of(run)});
  // No machine stands for all of a job on several hosts.
  if (run.record.machine && run.record.machine->hosts.size() == 1)
    facts.push_back({"Machine", machine_of(run.record.machine->hosts.front())});
  facts.push_back({"Folder", run.folder, true});
  return html_section("environment", "Environment", html_facts(facts));
}

}  // namespace muster
