// Every rank leads a process group, in which its children are too. So the leaders are looked for by
// their environment, and what a rank uses is the sum over its group.
#include "muster/report/rank_usage.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>
#include <ranges>
#include <system_error>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/supervise/descendants.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

struct ProcStat {
  int pid = 0;
  int64_t group = 0;
  char state = '?';
  double cpu_seconds = 0;
  double started_seconds = 0;  // since boot
  uint64_t memory_bytes = 0;
};

// The kernel counts the use of CPUs in ticks, usually a hundredth of a second.
double seconds_of_ticks(int64_t ticks) {
  static const auto ticks_a_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(ticks) / ticks_a_second;
}

// The numbers of the fields are those of proc_pid_stat(5) less 3.
ProcStat stat_of(int pid, const ProcessStatus& status) {
  static const uint64_t page = ::sysconf(_SC_PAGESIZE);
  constexpr size_t kGroup = 2, kUserTicks = 11, kSystemTicks = 12, kStart = 19, kResidentPages = 21;
  return {.pid = pid,
          .group = status.number(kGroup),
          .state = status.state,
          .cpu_seconds = seconds_of_ticks(status.number(kUserTicks) + status.number(kSystemTicks)),
          .started_seconds = seconds_of_ticks(status.number(kStart)),
          .memory_bytes = page * status.number(kResidentPages)};
}

// Processes that end while the folder is read are left out.
std::vector<ProcStat> all_processes() {
  std::vector<ProcStat> all;
  std::error_code error;
  for (const fs::path& path : paths_in("/proc", error)) {
    const auto pid = parse_count(file_name(path));
    const ProcessStatus status = pid ? process_status(*pid) : ProcessStatus();
    const bool has_ended = status.fields.empty();
    if (!has_ended)
      all.push_back(stat_of(*pid, status));
  }
  if (error)
    throw Error(ErrorCode::io, "cannot read /proc: ", error.message());
  return all;
}

struct StartedAs {
  int rank = -1;
  int attempt = 0;
};

// Returns what the process was started as; nothing if it is no rank of the job.
std::optional<StartedAs> identity_of(int pid, const std::string& run_dir) {
  bool is_of_job = false;
  StartedAs identity;
  for (const auto& variable : environment_entries(pid)) {
    if (variable == cat("MUSTER_RUN_DIR=", run_dir))
      is_of_job = true;
    if (variable.starts_with("RANK="))
      identity.rank = parse_count(variable.substr(5)).value_or(-1);
    if (variable.starts_with("MUSTER_ATTEMPT="))
      identity.attempt = parse_count(variable.substr(15)).value_or(0);
  }
  if (!is_of_job || identity.rank < 0)
    return std::nullopt;
  return identity;
}

// Returns 0 where the kernel does not tell.
double seconds_since_boot() {
  return number_before_text(try_read_file("/proc/uptime", 256).value_or(""));
}

}  // namespace

std::vector<RankUsage> find_rank_usage(const std::string& run_dir) {
  const auto all = all_processes();
  const double now = seconds_since_boot();
  std::multimap<int, RankUsage> by_attempt;
  for (const ProcStat& leader : all) {
    // A zombie uses nothing, and its environment cannot be read.
    if (leader.pid != leader.group || leader.state == 'Z')
      continue;
    const auto identity = identity_of(leader.pid, run_dir);
    if (!identity)
      continue;
    RankUsage process{
        .rank = identity->rank, .pid = leader.pid, .stopped = is_one_of(leader.state, 'T', 't')};
    process.age_seconds = now - leader.started_seconds;
    for (const ProcStat& one : all) {
      if (one.group != leader.pid)
        continue;
      process.cpu_seconds += one.cpu_seconds;
      process.memory_bytes += one.memory_bytes;
    }
    by_attempt.emplace(identity->attempt, process);
  }
  // The order of attempts lets the newest process of a rank win where rows are filled in one by
  // one.
  const auto ranks = std::views::values(by_attempt);
  return {ranks.begin(), ranks.end()};
}

}  // namespace muster
