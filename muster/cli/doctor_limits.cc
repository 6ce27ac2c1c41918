// The checks of shared memory, resource limits and cgroups.
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "muster/base/control_group.h"
#include "muster/base/fd.h"
#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/cli/doctor_checks.h"

namespace muster {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Limit {
  bool unlimited = false;
  uint64_t value = 0;
  std::string text() const { return unlimited ? "unlimited" : cat(value); }
  std::string size_text() const { return unlimited ? text() : format_bytes(value); }
  bool below(uint64_t least) const { return !unlimited && value < least; }
};

constexpr auto kNotTold = "/proc/self/limits does not tell";

// Returns a soft limit of /proc/self/limits by its name there; nothing if the file does not have
// it.
std::optional<Limit> soft_limit(const DoctorFacts& facts, std::string_view name) {
  const auto text = try_read_file(facts.root + "/proc/self/limits");
  if (!text)
    return std::nullopt;
  for (const auto& line : split(*text, '\n')) {
    if (!line.starts_with(name))
      continue;
    const std::string_view rest = trim(std::string_view(line).substr(name.size()));
    const std::string_view word = rest.substr(0, rest.find(' '));
    if (word == "unlimited")
      return Limit{.unlimited = true};
    if (const auto number = parse_int(word); number && *number >= 0)
      return Limit{.value = static_cast<uint64_t>(*number)};
  }
  return std::nullopt;
}

// `option` is that of the shell's ulimit, and `what` is why less is a problem.
CheckResult judge_limit(const std::optional<Limit>& limit,
                        uint64_t least,
                        const char* option,
                        const char* what) {
  if (!limit)
    return {kSkipped, kNotTold};
  if (!limit->below(least))
    return {kOk, limit->text()};
  return {kWarn,
          cat("at most ", limit->text(), "; ", what),
          cat("ulimit ", option, " ", least, " before the job, or /etc/security/limits.conf")};
}

// Returns the folder of this process's cgroup in the one hierarchy of version 2; nothing if there
// is none, or if it has no controllers.
std::optional<std::string> cgroup_folder(const DoctorFacts& facts) {
  for (const ControlGroup& group : control_groups("memory", facts.root)) {
    if (group.v2 && try_read_file(group.folder + "/cgroup.controllers"))
      return group.folder;
  }
  return std::nullopt;
}

// Returns how many processes and threads the cgroup may have; nothing if that is not limited.
std::optional<int64_t> most_processes(const std::string& folder) {
  return parse_int(trim(try_read_file(cat(folder, "/pids.max")).value_or("max")));
}

// The limits may be those of a group further out, which the functions of base/ look up.
std::string cgroup_limits(const std::string& folder, const std::string& root) {
  Strings limits;
  if (const auto memory = group_memory_limit(root))
    limits.push_back(cat("memory ", format_bytes(*memory)));
  if (const auto cores = cpu_quota(root))
    limits.push_back(cat("CPU time of ", *cores, " cores"));
  if (const auto pids = most_processes(folder))
    limits.push_back(cat(*pids, " processes"));
  return limits.empty() ? std::string("no limits") : cat("limits: ", join(limits, ", "));
}

}  // namespace

// Shared memory that cannot be used is a failure; little of it is a warning.
CheckResult check_shared_memory(const DoctorFacts& facts) {
  const char* const fix =
      "mount -o remount,size=8G /dev/shm; in a container, --shm-size=8g or --ipc=host";
  if (!facts.shm_total_bytes)
    return {kFail, "none", "mount -t tmpfs tmpfs /dev/shm"};
  if (!facts.shm_writable)
    return {kFail, "this user cannot write there", "chmod 1777 /dev/shm (as root)"};
  const auto text =
      cat(format_bytes(facts.shm_free_bytes), " free of ", format_bytes(*facts.shm_total_bytes));
  // A group of ranks over shared memory could not even begin.
  if (facts.shm_free_bytes < 16 * kMiB)
    return {kFail, text, cat("remove what is left over, or ", fix)};
  if (facts.shm_free_bytes < kGiB) {
    return {kWarn, text + "; NCCL, data loaders and shared-memory groups want 1 GiB or more", fix};
  }
  return {kOk, text};
}

// Each rank opens sockets to others, pipes, and files of its data.
CheckResult check_open_files(const DoctorFacts& facts) {
  return judge_limit(
      soft_limit(facts, "Max open files"), 4096, "-n", "large jobs and data loaders need more");
}

// RDMA cards write into memory that must not move.
CheckResult check_locked_memory(const DoctorFacts& facts) {
  const auto limit = soft_limit(facts, "Max locked memory");
  if (!limit)
    return {kSkipped, kNotTold};
  const bool has_rdma_card = !names_in(facts.root + "/sys/class/infiniband").empty();
  if (!has_rdma_card)
    return {kOk, cat(limit->size_text(), ", enough without an RDMA card")};
  if (!limit->below(kGiB))
    return {kOk, limit->size_text()};
  return {kWarn,
          cat("at most ", limit->size_text(), "; RDMA cards need locked buffers"),
          "ulimit -l unlimited before the job, or /etc/security/limits.conf"};
}

// Ranks have many threads, and Linux counts each as a process.
CheckResult check_processes(const DoctorFacts& facts) {
  return judge_limit(soft_limit(facts, "Max processes"), 4096, "-u", "threads count too");
}

// With a cgroup that this user can write, muster ends all processes of a rank at once.
CheckResult check_cgroup(const DoctorFacts& facts) {
  const auto folder = cgroup_folder(facts);
  if (!folder) {
    return {kSkipped,
            "no cgroup v2: muster ends ranks by their process groups, and orphans one by one"};
  }
  const auto limits = cgroup_limits(*folder, facts.root);
  // A rank of LibTorch has tens of threads.
  if (most_processes(*folder).value_or(INT64_MAX) < 1000) {
    return {kWarn,
            limits + ", and threads count too",
            "raise pids.max (docker: --pids-limit; systemd: TasksMax)"};
  }
  const bool writable = ::access((*folder + "/cgroup.procs").c_str(), W_OK) == 0 &&
                        ::access(folder->c_str(), W_OK) == 0;
  if (writable)
    return {kOk, "writable; " + limits};
  return {kOk,
          cat("not writable (systemd-run --user --scope -p Delegate=yes makes it writable): "
              "muster ends ranks by their process groups, and orphans one by one; ",
              limits)};
}

}  // namespace muster
