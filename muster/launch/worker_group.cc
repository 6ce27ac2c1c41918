#include "muster/launch/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "muster/base/log.h"
#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/port_watch.h"
#include "muster/launch/source_lines.h"
#include "muster/supervise/descendants.h"
#include "muster/supervise/input.h"
#include "muster/supervise/output.h"

namespace muster {

namespace {

constexpr size_t kTailBytes = size_t{96} * 1024;  // a signal's stack is up to 64 KiB of it
constexpr size_t kLastLines = 20;
constexpr size_t kLinesWithStack = 200;  // of which those of a signal's stack are taken
constexpr std::chrono::milliseconds kLookAtRanksEvery{1'000};

// One rank's two streams.
struct Streams {
  Fd out;  // the child's ends
  Fd err;
  std::optional<Output::StreamId> err_id;
};

// The child's end of one stream: a pipe that we read, a file of its own, or /dev/null.
Fd open_target(Output& output, const WorkerSpec& spec, const StreamTarget& target, int fd, size_t tail_bytes,
               std::optional<Output::StreamId>* id) {
  const bool piped = target.console || (tail_bytes > 0 && target.file.empty());
  if (piped) {
    auto opened = output.open({.console_fd = target.console ? fd : -1,
                               .prefix = spec.prefix,
                               .collapse_as = spec.collapse ? spec.rank : -1,
                               .file = target.file,
                               .tail_bytes = tail_bytes});
    if (id != nullptr) *id = opened.id;
    return std::move(opened.child_end);
  }
  const std::string path = target.file.empty() ? "/dev/null" : target.file;
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) fail_errno(cat("cannot create log '", path, "'"), errno);
  return file;
}

// The end of a file that a rank wrote by itself.
std::vector<std::string> last_lines_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return {};
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(kTailBytes));
  std::string text(static_cast<size_t>(std::max<off_t>(0, size - from)), '\0');
  const ssize_t n = ::pread(file.get(), text.data(), text.size(), from);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, n)));
  return split(trim(text), '\n');
}

void start(ProcessSet& processes, const WorkerSpec& spec, const Streams& streams, int input,
           const std::vector<int>& inherit_fds) {
  processes.spawn(spec.rank, {.argv = spec.argv,
                              .program = spec.program,
                              .environment = spec.environment,
                              .working_directory = spec.working_directory,
                              .stdin_fd = input,
                              .stdout_fd = streams.out.get(),
                              .stderr_fd = streams.err.get(),
                              .inherit_fds = inherit_fds,
                              .cpus = spec.cpus});
}

WorkerExit explain(const ChildExit& end, const WorkerSpec& spec, Clock::time_point started) {
  WorkerExit exit{
      .rank = spec.rank,
      .local_rank = spec.local_rank,
      .host = spec.host,
      .device = spec.device,
      .pid = end.pid,
      .exit_code = end.exit_code,
      .signal = end.signal,
      .sent_signal = end.sent_signal,
      .stderr_log = spec.err.file,
      .after = std::chrono::duration_cast<std::chrono::milliseconds>(end.at - started),
      .at = std::chrono::system_clock::now() -
            std::chrono::duration_cast<std::chrono::system_clock::duration>(Clock::now() - end.at)};
  exit.cause = describe_end(exit) + (end.core_dumped ? ", core dumped" : "");
  if (!exit.failed()) return exit;
  if (auto error = read_error_file(spec.error_file)) {
    exit.message = std::move(error->message);
    exit.stack = std::move(error->stack);
  }
  return exit;
}

// What it said last, on standard error.
void add_lines(WorkerExit& exit, std::vector<std::string> lines) {
  take_signal_stack(exit, lines);
  if (lines.size() > kLastLines) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(kLastLines));
  exit.last_lines = std::move(lines);
}

const WorkerSpec& spec_of(const std::vector<WorkerSpec>& specs, int rank) {
  return *std::find_if(specs.begin(), specs.end(), [&](const WorkerSpec& spec) { return spec.rank == rank; });
}

void make_log_folder(const std::vector<WorkerSpec>& specs) {
  if (specs.empty()) return;
  const auto folder = std::filesystem::path(specs[0].error_file).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_errno(cat("cannot create '", folder.string(), "'"), error.value());
  // A run that goes on in the same folder must not find what an earlier one's rank reported.
  for (const WorkerSpec& spec : specs) ::unlink(spec.error_file.c_str());
}

// Where the kernel has killed as many of this control group meanwhile, ranks' SIGKILLs that nobody here sent
// are said to be that.
void explain_oom_kills(const std::optional<int64_t>& before, std::vector<WorkerExit>& exits) {
  const auto killed = [](const WorkerExit& exit) { return exit.signal == SIGKILL && exit.sent_signal == 0; };
  const auto unexplained = std::count_if(exits.begin(), exits.end(), killed);
  if (!before || unexplained == 0) return;
  const int64_t kills = count_oom_kills().value_or(0) - *before;
  if (kills < unexplained) return;
  const auto limit = group_memory_limit();
  const std::string cause =
      cat("killed by SIGKILL: out of memory (the kernel ended ", kills,
          kills == 1 ? " process" : " processes", " of this control group meanwhile",
          limit ? cat(", whose limit is ", format_bytes(static_cast<uint64_t>(*limit))) : "", ")");
  for (WorkerExit& exit : exits) {
    if (killed(exit)) exit.cause = cause;
  }
}

// Of the failure that the card is about; the files that say are on this host.
void name_source_lines(std::vector<WorkerExit>& exits) {
  const WorkerExit* first = first_failure(exits);
  for (WorkerExit& exit : exits) {
    if (&exit == first) exit.stack = with_source_lines(exit.stack);
  }
}

// What tells this launcher's processes from all others, those of another agent of the job too.
std::vector<std::string> marks_of(const std::vector<WorkerSpec>& specs) {
  if (specs.empty()) return {};
  const auto found = specs[0].environment.find("MUSTER_AGENT");
  return found == specs[0].environment.end() ? std::vector<std::string>()
                                             : std::vector<std::string>{cat("MUSTER_AGENT=", found->second)};
}

// Of a rank that failed by itself, for which the others do not end.
void say_lost(const ChildExit& exit, const WorkerSpec& spec, Clock::time_point started, size_t running) {
  if (!exit.failed() || exit.sent_signal != 0) return;
  log(LogLevel::warn,
      cat("rank ", spec.rank, " is lost: ", cause_and_error(explain(exit, spec, started)), "; ", running,
          running == 1 ? " rank goes" : " ranks go", " on (--on-failure continue)"));
}

std::string rank_list(const std::vector<int>& ranks) {
  return cat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "));
}

// Says once, after a while, that some ranks have ended well and the others have not: often those wait for a
// collective that nobody will join any more.
class EarlyEnd {
 public:
  EarlyEnd(ProcessSet& processes, const std::vector<WorkerSpec>& specs, std::chrono::milliseconds delay)
      : processes_(processes), delay_(delay) {
    for (const WorkerSpec& spec : specs) running_.push_back(spec.rank);
  }
  EarlyEnd(const EarlyEnd&) = delete;
  EarlyEnd& operator=(const EarlyEnd&) = delete;
  ~EarlyEnd() { processes_.loop().cancel(timer_); }

  void on_exit(const ChildExit& exit) {
    std::erase(running_, exit.id);
    ended_.push_back(exit.id);
    failed_ |= exit.failed();
    if (timer_ == 0) timer_ = processes_.loop().call_at(exit.at + delay_, [this] { say(); });
  }

 private:
  void say() {
    if (failed_ || running_.empty() || processes_.stop_requested() != 0) return;
    log(LogLevel::info, cat(rank_list(ended_), ended_.size() == 1 ? " has" : " have",
                            " ended with exit code 0, the first ", format_duration(delay_), " ago; ",
                            rank_list(running_), running_.size() == 1 ? " goes" : " go", " on"));
  }

  ProcessSet& processes_;
  std::chrono::milliseconds delay_;
  std::vector<int> running_;
  std::vector<int> ended_;
  bool failed_ = false;
  EventLoop::Handle timer_ = 0;
};

// Names ranks that are stopped: the others wait for them and nobody else says why.
class StoppedRanks {
 public:
  StoppedRanks(ProcessSet& processes, const std::vector<WorkerSpec>& specs,
               std::optional<std::chrono::milliseconds> limit)
      : processes_(processes), limit_(limit) {
    for (const WorkerSpec& spec : specs)
      ranks_.push_back({.rank = spec.rank, .pid = processes.pid_of(spec.rank)});
    look_again();
  }
  StoppedRanks(const StoppedRanks&) = delete;
  StoppedRanks& operator=(const StoppedRanks&) = delete;
  ~StoppedRanks() { processes_.loop().cancel(timer_); }

  void on_exit(const ChildExit& exit) {
    std::erase_if(ranks_, [&](const Rank& rank) { return rank.rank == exit.id; });
  }

  // The SIGKILLs that came from here say so.
  void explain(std::vector<WorkerExit>& exits) const {
    for (WorkerExit& exit : exits) {
      if (exit.signal != SIGKILL || !ended_.contains(exit.rank)) continue;
      exit.cause = cat("ended by muster (SIGKILL): it had been stopped for ", format_duration(*limit_),
                       " (--stopped-timeout)");
    }
  }

 private:
  struct Rank {
    int rank;
    pid_t pid;
    std::optional<Clock::time_point> since{};
    bool said = false;
  };

  void look_again() {
    timer_ = processes_.loop().call_at(Clock::now() + kLookAtRanksEvery, [this] {
      for (Rank& rank : ranks_) look(rank);
      look_again();
    });
  }

  void look(Rank& rank) {
    const char state = process_status(rank.pid).state;
    if (state != 'T' && state != 't') {
      if (std::exchange(rank.said, false)) log(LogLevel::info, cat("rank ", rank.rank, " goes on"));
      rank.since.reset();
      return;
    }
    const auto now = Clock::now();
    if (!rank.since) rank.since = now;
    if (limit_ && now - *rank.since >= *limit_) {
      log(LogLevel::warn, cat("rank ", rank.rank, " has been stopped for ", format_duration(*limit_),
                              "; ending it (--stopped-timeout)"));
      ended_.insert(rank.rank);
      ::kill(rank.pid, SIGKILL);
    } else if (!std::exchange(rank.said, true)) {
      log(LogLevel::warn,
          cat("rank ", rank.rank, " (pid ", rank.pid, ") is stopped", state == 't' ? " by a debugger" : "",
              "; the others will wait for it; kill -CONT ", rank.pid, " continues it"));
    }
  }

  ProcessSet& processes_;
  std::optional<std::chrono::milliseconds> limit_;
  std::vector<Rank> ranks_;
  std::set<int> ended_;
  EventLoop::Handle timer_ = 0;
};

}  // namespace

GroupResult run_workers(ProcessSet& processes, const std::vector<WorkerSpec>& specs,
                        const std::vector<int>& inherit_fds, const GroupRules& rules) {
  make_log_folder(specs);
  processes.post_sentinel(marks_of(specs));
  const auto oom_kills = count_oom_kills();
  Output output(processes.loop());
  Input input(processes.loop());
  std::string fault;
  PortWatch port(processes.loop(), rules.master_port, [&](const std::string& stranger) {
    if (processes.is_ending()) return;  // what is saved now is worth more
    fault = stranger;
    processes.end_all_now();
  });
  if (!fault.empty()) return {.exits = {}, .fault = fault};
  const auto started = Clock::now();
  std::vector<std::optional<Output::StreamId>> err_ids(specs.size());
  try {
    for (size_t i = 0; i < specs.size(); ++i) {
      const WorkerSpec& spec = specs[i];
      const Fd terminal = spec.rank == 0 ? input.open() : Fd();
      const int stdin_fd = spec.rank != 0 ? -1 : terminal.valid() ? terminal.get() : STDIN_FILENO;
      Streams streams;
      streams.out = open_target(output, spec, spec.out, STDOUT_FILENO, 0, nullptr);
      streams.err = open_target(output, spec, spec.err, STDERR_FILENO, kTailBytes, &err_ids[i]);
      start(processes, spec, streams, stdin_fd, inherit_fds);
    }
  } catch (const Error&) {
    processes.kill_all();
    throw;
  }
  const auto explained = [&](const ChildExit& end) {
    const WorkerSpec& spec = spec_of(specs, end.id);
    WorkerExit exit = explain(end, spec, started);
    if (!exit.failed()) return exit;
    const auto id = err_ids[static_cast<size_t>(&spec - specs.data())];
    add_lines(exit, id ? output.last_lines(*id, kLinesWithStack) : last_lines_of(spec.err.file));
    exit.lines_in_sight = id && spec.err.console && output.in_sight(*id);
    return exit;
  };
  EarlyEnd early_end(processes, specs, rules.early_end_after);
  StoppedRanks stopped(processes, specs, rules.stopped_for);
  size_t running = specs.size();
  const WaitResult ended = processes.wait_all(
      {.stop_on_failure = !rules.goes_on,
       .grace = rules.shutdown_timeout,
       .until = rules.until,
       .on_exit =
           [&](const ChildExit& exit) {
             early_end.on_exit(exit);
             stopped.on_exit(exit);
             if (exit.failed()) port.look();  // it may be the consequence
             if (--running == 0) port.stop();
             if (rules.goes_on) say_lost(exit, spec_of(specs, exit.id), started, running);
             if (rules.on_failure && fault.empty() && exit.failed() && exit.sent_signal == 0)
               rules.on_failure(explain(exit, spec_of(specs, exit.id), started));
           },
       .is_consequence = [&](const ChildExit& exit) { return lost_a_peer(explained(exit)); }});
  input.close();
  // A job that was stopped, or is now, ends soon, whoever holds the pipe that it writes to.
  output.finish([&] { return ended.stopped_by != 0 || processes.stop_requested() != 0; });

  GroupResult result{.exits = {},
                     .stopped_by = ended.stopped_by,
                     .timed_out = ended.timed_out,
                     .fault = fault,
                     .all_gone = ended.survivors.empty()};
  for (const ChildExit& end : ended.exits) result.exits.push_back(explained(end));
  explain_oom_kills(oom_kills, result.exits);
  stopped.explain(result.exits);
  name_source_lines(result.exits);
  if (!ended.killed.empty()) {
    log(LogLevel::warn, cat("killed what ranks had started and left: ", join(ended.killed, ", ")));
  }
  for (const std::string& survivor : ended.survivors) {
    log(LogLevel::error, cat("could not end ", survivor, "; it is left to the system"));
  }
  return result;
}

}  // namespace muster
