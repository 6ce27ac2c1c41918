// The checks of what former and running jobs hold, and of the torch that is there. A left-over
// process is one whose environment names a job, but none of whose parents launches that job any
// more.
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Returns a field of /proc/PID/status: "PPid:".
std::string status_field(const std::string& status, const std::string& name) {
  for (const std::string& line : split(status, '\n')) {
    if (line.starts_with(name))
      return std::string(trim(std::string_view(line).substr(name.size())));
  }
  return {};
}

// torchrun's id may be "none"; the run's folder of muster tells more then.
std::string job_of(const std::string& environment) {
  std::string job;
  for (const std::string& entry : split(environment, '\0')) {
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
  for (const std::string& name : names_in(facts.root + "/proc")) {
    const auto pid = parse_int(name);
    const std::string folder = cat(facts.root, "/proc/", name);
    struct stat info = {};
    if (!pid || ::stat(folder.c_str(), &info) != 0 || info.st_uid != facts.user)
      continue;
    const std::string status = file_text(folder + "/status").value_or("");
    Process process{
        .pid = static_cast<int>(*pid),
        .parent = static_cast<int>(parse_int(status_field(status, "PPid:")).value_or(0)),
        .name = status_field(status, "Name:"),
        .job = job_of(file_text(folder + "/environ").value_or(""))};
    processes.emplace(process.pid, std::move(process));
  }
  return processes;
}

// Whether process `pid` takes in orphans instead of having launched something: the init of the
// system, or of a session. Process 1 of a container may be the launcher itself, which runs a job
// without having been told one.
bool adopts_orphans(const DoctorFacts& facts, int pid, const Process& orphan) {
  static const std::set<std::string> kInits = {
      "systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan"};
  const std::string folder = cat(facts.root, "/proc/", pid);
  const std::string name(trim(file_text(folder + "/comm").value_or("")));
  if (kInits.contains(name))
    return true;
  if (pid != 1)
    return false;
  const std::string command = file_text(folder + "/cmdline").value_or("");
  const bool launches =
      command.find("muster") != std::string::npos || command.find("torch") != std::string::npos;
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

// Returns "2.15.0" for "#define TORCH_VERSION_MAJOR 2" and so on.
std::string version_in_header(const std::string& text) {
  std::vector<std::string> numbers;
  for (const char* part : {"MAJOR ", "MINOR ", "PATCH "}) {
    const std::string name = cat("#define TORCH_VERSION_", part);
    const size_t at = text.find(name);
    if (at == std::string::npos)
      return "";
    const size_t from = at + name.size();
    numbers.emplace_back(trim(text.substr(from, text.find('\n', from) - from)));
  }
  return join(numbers, ".");
}

// Returns the version in a torch folder (a wheel's or a libtorch's), from files alone.
std::string torch_version(const std::string& folder) {
  const std::string python = file_text(folder + "/version.py").value_or("");
  if (const size_t at = python.find("__version__ = '"); at != std::string::npos) {
    const size_t from = at + std::string_view("__version__ = '").size();
    return python.substr(from, python.find('\'', from) - from);
  }
  if (const auto built = file_text(folder + "/build-version"))
    return std::string(trim(*built));
  return version_in_header(file_text(folder + "/include/torch/headeronly/version.h").value_or(""));
}

// Returns where a Python of this prefix would have torch, as in a virtual environment.
std::vector<std::string> torch_folders(const std::string& prefix) {
  std::vector<std::string> folders;
  for (const std::string& name : names_in(prefix + "/lib")) {
    if (!name.starts_with("python3"))
      continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      folders.push_back(cat(prefix, "/lib/", name, "/", packages, "/torch"));
    }
  }
  return folders;
}

// Returns the folders where a torch may be, the likeliest first: TORCH (a folder, or a Python), the
// active environment, .deps of the current folder, the Pythons of PATH.
std::vector<std::string> torch_candidates(const DoctorFacts& facts) {
  std::vector<std::string> folders;
  const auto add_prefix = [&](const std::string& prefix) {
    append_all(folders, torch_folders(prefix));
  };
  const auto above = [](const std::string& path) {
    return path.substr(0, path.rfind('/'));
  };
  if (const auto torch = variable(facts, "TORCH")) {
    folders.push_back(*torch);
    add_prefix(above(above(*torch)));  // …/bin/python
  }
  if (const auto active = variable(facts, "VIRTUAL_ENV"))
    add_prefix(*active);
  add_prefix(cat(variable(facts, "PWD").value_or("."), "/.deps/torch"));
  for (const std::string& bin : split(variable(facts, "PATH").value_or(""), ':')) {
    if (!bin.ends_with("/bin"))
      continue;
    const std::string prefix = facts.root + above(bin);
    folders.push_back(prefix + "/lib/muster/libtorch/torch");  // as `make install` copies it
    add_prefix(prefix);
  }
  return folders;
}

// muster's C++ part builds with LibTorch 2.11 to 2.15.
bool is_supported(const std::string& version) {
  if (!version.starts_with("2."))
    return false;
  const int64_t minor = parse_int(split(version, '.')[1]).value_or(0);
  return minor >= 11 && minor <= 15;
}

// Other versions may run the launcher, which does not need LibTorch.
CheckResult judge_torch(const std::string& version, const std::string& where) {
  const std::string text = cat(version, " (", where, ")");
  if (is_supported(version))
    return {CheckStatus::ok, text};
  return {CheckStatus::warn,
          text + "; muster's C++ part builds with 2.11 to 2.15",
          "give another with TORCH=, or install one: scripts/setup.sh train"};
}

}  // namespace

// A left-over rank holds its GPU's memory and its port.
CheckResult check_orphans(const DoctorFacts& facts) {
  const auto processes = own_processes(facts);
  std::map<std::string, std::vector<std::string>> found;
  std::vector<int> pids;
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
    return {CheckStatus::ok, "no process of a job whose launcher is gone"};
  const auto jobs = mapped(found, [](const auto& entry) {
    return cat("of job ", entry.first, ": ", join(entry.second, ", "));
  });
  return {CheckStatus::warn,
          cat("left-over processes ", join(jobs, "; ")),
          cat("kill ", join(pids, " "))};
}

// A lease whose holder has ended is kept by a process that inherited it.
CheckResult check_leases(const DoctorFacts& facts) {
  if (!facts.lease_error.empty()) {
    return {CheckStatus::fail,
            facts.lease_error,
            "correct the folder's permissions; until then: muster run --no-lease"};
  }
  std::vector<std::string> held;
  bool orphaned = false;
  for (const auto& [uuid, holders] : facts.leases) {
    for (const LeaseHolder& holder : holders) {
      held.push_back(cat(gpu_label(facts, uuid), ": ", describe(holder)));
      orphaned |= holder.note && !holder.alive;
    }
  }
  if (held.empty())
    return {CheckStatus::ok, cat("none held (", facts.lease_folder, ")")};
  if (!orphaned)
    return {CheckStatus::ok, join(held, "; ")};
  return {CheckStatus::warn,
          join(held, "; "),
          cat("end what the job left over; `fuser -v ",
              facts.lease_folder,
              "/*` shows who has it open")};
}

// A Python's own answer comes before what files tell.
CheckResult check_torch(const DoctorFacts& facts) {
  if (!facts.python_error.empty()) {
    return {CheckStatus::fail,
            cat(facts.asked_python, ": ", facts.python_error),
            "give a Python that has torch, or install it there"};
  }
  if (!facts.python_answer.empty()) {
    // The answer is the version and the folder.
    const size_t blank = facts.python_answer.find(' ');
    const std::string where =
        blank == std::string::npos ? facts.asked_python : facts.python_answer.substr(blank + 1);
    return judge_torch(facts.python_answer.substr(0, blank), where);
  }
  for (const std::string& folder : torch_candidates(facts)) {
    const std::string version = torch_version(folder);
    if (!version.empty())
      return judge_torch(version, folder);
  }
  return {CheckStatus::skipped,
          "no LibTorch found by its files (--python PYTHON asks that Python); muster can start "
          "programs "
          "without it"};
}

}  // namespace muster
