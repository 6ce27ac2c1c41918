// A process is known by its id and its start time, from /proc/<pid>/stat: another process may have
// the id later. A zombie has ended for our purpose, though it still has an entry.
#include "muster/comm/call/rank_processes.h"

#include <cerrno>
#include <fstream>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "muster/base/lock.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

struct KnownProcess {
  RankProcess process;
  std::string started;  // start_of() then
};

std::mutex g_mutex;
std::vector<KnownProcess> g_known;

// Returns when the process was started, in ticks since the machine was; empty where it has ended,
// waited for or not. Nothing where that cannot be known now, as with too many open files.
std::optional<std::string> start_of(int pid) {
  errno = 0;
  std::ifstream file(cat("/proc/", pid, "/stat"));
  if (!file.is_open() && errno != ENOENT)
    return std::nullopt;
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may have spaces and parentheses
  if (name_end == std::string::npos)
    return "";
  const auto fields = split(trim(std::string_view(text).substr(name_end + 1)), ' ');
  constexpr size_t kState = 0, kStart = 19;
  if (fields.size() <= kStart || fields[kState] == "Z" || fields[kState] == "X")
    return "";
  return fields[kStart];
}

// "rank 2 (process 18017)" of each, whose ranks are lost from now on.
std::string names_of(const std::vector<RankProcess>& processes) {
  const Strings names = mapped(processes, [](const RankProcess& process) {
    note_lost_rank(process.rank);
    return cat("rank ", process.rank, " (process ", process.pid, ")");
  });
  return join(names, ", ");
}

}  // namespace

void remember_rank_processes(const std::vector<RankProcess>& ranks) {
  const Lock lock(g_mutex);
  g_known.clear();
  for (const RankProcess& rank : ranks) {
    if (const auto started = start_of(rank.pid))
      g_known.push_back({.process = rank, .started = *started});
  }
}

std::vector<RankProcess> ended_processes() {
  const Lock lock(g_mutex);
  const auto ended = filtered(g_known, [](const KnownProcess& known) {
    return start_of(known.process.pid).value_or(known.started) != known.started;
  });
  return mapped(ended, &KnownProcess::process);
}

// It looks again for a while: a process closes its connections a little before it has ended.
std::string ended_ranks(milliseconds patience) {
  const Deadline deadline(patience);
  for (;;) {
    std::string ended = names_of(ended_processes());
    if (!ended.empty() || deadline.passed())
      return ended;
    std::this_thread::sleep_for(milliseconds(5));
  }
}

}  // namespace muster
