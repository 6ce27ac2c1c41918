// The checks of what former and running jobs hold. A left-over process is one whose environment
// names a job, but none of whose parents launches that job any more.
#include <sys/stat.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/fd.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/cli/doctor_checks.h"

namespace muster {

namespace {

struct Process {
  int pid = 0;
  int parent = 0;
  std::string name;
  std::string job;  // as a launcher's variables name it; empty: no rank, nor started by one
};

// Returns the value of a line of /proc/PID/status that begins with `name`, as "PPid:".
std::string status_field(const std::string& status, const std::string& name) {
  for (const auto& line : split(status, '\n')) {
    if (line.starts_with(name))
      return std::string(trim(std::string_view(line).substr(name.size())));
  }
  return {};
}

// Returns the job of a process. torchrun's id may be "none"; muster's run folder tells more then.
std::string job_of(const std::string& environment) {
  std::string job;
  for (const auto& entry : split(environment, '\0')) {
    for (const std::string_view name : {"TORCHELASTIC_RUN_ID=", "MUSTER_RUN_DIR="}) {
      if (entry.starts_with(name) && (job.empty() || job == "none"))
        job = entry.substr(name.size());
    }
  }
  return job;
}

// Returns this user's processes by pid. The environment of another's could not be read.
std::map<int, Process> own_processes(const DoctorFacts& facts) {
  std::map<int, Process> processes;
  for (const auto& name : names_in(facts.root + "/proc")) {
    const auto pid = parse_count(name);
    const auto folder = cat(facts.root, "/proc/", name);
    struct stat info{};
    if (!pid || ::stat(folder.c_str(), &info) != 0 || info.st_uid != facts.user)
      continue;
    const auto status = try_read_file(folder + "/status").value_or("");
    Process process{.pid = *pid,
                    .parent = parse_count(status_field(status, "PPid:")).value_or(0),
                    .name = status_field(status, "Name:"),
                    .job = job_of(try_read_file(folder + "/environ").value_or(""))};
    processes.emplace(process.pid, std::move(process));
  }
  return processes;
}

// Whether process `pid` takes in orphans instead of having launched something: the init of the
// system, or of a session. Process 1 of a container may be the launcher itself, which runs a job
// without having been told one.
bool adopts_orphans(const DoctorFacts& facts, int pid, const Process& orphan) {
  static const StringSet kInits = {
      "systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan"};
  const auto folder = cat(facts.root, "/proc/", pid);
  const std::string name(trim(try_read_file(folder + "/comm").value_or("")));
  if (kInits.contains(name))
    return true;
  if (pid != 1)
    return false;
  const auto command = try_read_file(folder + "/cmdline").value_or("");
  const bool launches = has_text(command, "muster") || has_text(command, "torch");
  return !launches && name != orphan.name;
}

// Returns the outermost of the process's parents that belong to the same job.
const Process& first_of_job(const std::map<int, Process>& processes, const Process& process) {
  const Process* at = &process;
  // The bound ends a circle, which processes that come and go may seem to form.
  for (size_t steps = 0; steps < processes.size(); ++steps) {
    const auto parent = processes.find(at->parent);
    if (parent == processes.end() || parent->second.job != process.job)
      break;
    at = &parent->second;
  }
  return *at;
}

// A UUID of a GPU that is no longer there is shown as it is.
std::string gpu_label(const DoctorFacts& facts, const GpuUuid& uuid) {
  const Gpu* const gpu = element_with(facts.host.gpus, uuid, &Gpu::uuid);
  return gpu != nullptr ? cat("GPU ", gpu->index.value) : uuid.value;
}

}  // namespace

// A left-over rank holds its GPU's memory and its port.
CheckResult check_orphans(const DoctorFacts& facts) {
  const auto processes = own_processes(facts);
  std::map<std::string, Strings> found;
  Ints pids;
  for (const auto& [pid, process] : processes) {
    if (process.job.empty())
      continue;
    const Process& first = first_of_job(processes, process);
    const bool orphaned = first.parent != 0 && adopts_orphans(facts, first.parent, first);
    if (!orphaned)
      continue;
    found[process.job].push_back(cat(pid, " (", process.name, ")"));
    pids.push_back(pid);
  }
  if (found.empty())
    return {kOk, "no process of a job whose launcher is gone"};
  const auto jobs = mapped(found, [](const auto& entry) {
    return cat("of job ", entry.first, ": ", join(entry.second, ", "));
  });
  return {kWarn, cat("left-over processes ", join(jobs, "; ")), cat("kill ", join(pids, " "))};
}

// A lease whose holder has ended is kept by a process that inherited it.
CheckResult check_leases(const DoctorFacts& facts) {
  if (!facts.lease_error.empty()) {
    return {kFail,
            facts.lease_error,
            "correct the folder's permissions; until then: muster run --no-lease"};
  }
  Strings held;
  bool orphaned = false;
  for (const auto& [uuid, holders] : facts.leases) {
    for (const LeaseHolder& holder : holders) {
      held.push_back(cat(gpu_label(facts, uuid), ": ", describe(holder)));
      orphaned |= holder.note && !holder.alive;
    }
  }
  if (held.empty())
    return {kOk, cat("none held (", facts.lease_folder, ")")};
  if (!orphaned)
    return {kOk, join(held, "; ")};
  return {kWarn,
          join(held, "; "),
          cat("end what the job left over; `fuser -v ",
              facts.lease_folder,
              "/*` shows who has it open")};
}

}  // namespace muster
