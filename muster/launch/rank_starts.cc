// A rank's standard error is read by the launcher even where nobody sees it, as the card needs its
// last lines. Starts are kept in order, and the newest one in a slot is the rank that the slot has
// now.
#include "muster/launch/rank_starts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>

#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/lookup.h"
#include "muster/base/seen_line.h"
#include "muster/base/strings.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/source_lines.h"
#include "muster/store/generations.h"

namespace muster {

namespace {

constexpr size_t kTailBytes = size_t{96} * 1024;  // a signal's stack is up to 64 KiB of it
constexpr std::ptrdiff_t kLastLines = 20;
constexpr size_t kLinesWithStack = 200;  // of which those of a signal's stack are taken
// A traceback of Python is kept whole up to here: its first lines say who made the call.
constexpr std::ptrdiff_t kLinesOfTraceback = 60;

// The child's end of one stream: a pipe that we read, a file of its own, or /dev/null. Sets `id` if
// it is a pipe.
Fd open_target(Output& output,
               int folder,
               const RankSpec& spec,
               const StreamTarget& target,
               int fd,
               size_t tail_bytes,
               std::optional<Output::StreamId>& id) {
  const bool wants_tail = tail_bytes > 0 && target.file.empty();
  if (target.console || wants_tail) {
    auto opened = output.open({.console_fd = target.console ? fd : -1,
                               .prefix = spec.prefix,
                               .collapse_as = spec.collapse ? spec.rank : -1,
                               .file = target.file,
                               .folder = folder,
                               .tail_bytes = tail_bytes});
    id = opened.id;
    return std::move(opened.child_end);
  }
  if (!target.file.empty())
    return create_log(folder, target.file);
  return open_path("/dev/null", O_WRONLY);
}

// The end of a file that a rank wrote by itself.
Strings last_lines_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid())
    return {};
  return split(trim(tail_of_file(file.get(), kTailBytes)), '\n');
}

// All that is known of a rank's end but for its standard error. A process that ended on its way to
// the next generation may have left its error as the rank that it was before, in
// `earlier_error_file`.
RankExit explain(const ChildExit& end,
                 const RankSpec& spec,
                 const std::string& earlier_error_file,
                 TimePoint started) {
  const auto ago = std::chrono::duration_cast<WallClock::duration>(Clock::now() - end.at);
  RankExit exit{.rank = spec.rank,
                .local_rank = spec.local_rank,
                .host = spec.host,
                .device = spec.device,
                .pid = end.pid,
                .master_port = parse_count(find_or(spec.environment, "MASTER_PORT")).value_or(0),
                .exit_code = end.exit_code,
                .signal = end.signal,
                .sent_signal = end.sent_signal,
                .stderr_log = spec.err.file,
                .after = std::chrono::duration_cast<milliseconds>(end.at - started),
                .at = WallClock::now() - ago,
                .host_clock = std::chrono::duration_cast<milliseconds>(end.at.time_since_epoch())};
  exit.cause = describe_end(exit) + (end.core_dumped ? ", core dumped" : "");
  if (!exit.failed())
    return exit;
  auto error = read_error_file(spec.error_file);
  if (!error && !earlier_error_file.empty())
    error = read_error_file(earlier_error_file);
  if (error) {
    exit.message = std::move(error->message);
    exit.stack = std::move(error->stack);
    exit.facts = std::move(error->facts);
    if (!exit.facts.signal.empty())
      exit.message.clear();  // the signal's name, for other launchers
  }
  return exit;
}

// Returns the first of the lines that are kept: the last twenty, or the last traceback as a whole.
std::ptrdiff_t first_of_last(const Strings& lines) {
  const auto traceback = std::find_if(lines.rbegin(), lines.rend(), [](const auto& line) {
    return line.starts_with("Traceback (most recent call last)");
  });
  const std::ptrdiff_t last = std::max<std::ptrdiff_t>(0, std::ssize(lines) - kLastLines);
  const std::ptrdiff_t begin = std::distance(traceback, lines.rend()) - 1;
  const bool is_kept = traceback != lines.rend() && std::ssize(lines) - begin <= kLinesOfTraceback;
  return is_kept ? std::min(begin, last) : last;
}

// Takes what the rank said last on standard error: the stack of a signal or of Python, else the
// lines.
void add_lines(RankExit& exit, Strings lines) {
  take_signal_stack(exit, lines);
  take_uncaught_exception(exit, lines);
  take_python_fault(exit, lines);
  lines.erase(lines.begin(), lines.begin() + first_of_last(lines));
  for (std::string& line : lines)
    line = seen_line(line);
  exit.last_lines = std::move(lines);
}

}  // namespace

// The folder of an attempt lies in that of a run's logs, which lies in the run's folder or in
// --log-dir's.
void RankStarts::make_log_folder(const RankSpecs& specs) {
  if (specs.empty())
    return;
  const auto folder = std::filesystem::path(specs[0].error_file).parent_path();
  const auto top = folder.parent_path().parent_path();
  log_folder_ = make_folder_below(top, folder.lexically_relative(top));
  for (const RankSpec& spec : specs)
    ::unlink(spec.error_file.c_str());
}

// A file or a pipe is simply inherited. A terminal cannot be: the rank is in a process group of its
// own, and would be stopped when it reads. So its bytes are carried over a pipe.
Fd RankStarts::open_input() {
  close_input();
  if (::isatty(STDIN_FILENO) == 0)
    return {};
  Pipe pipe = open_pipe();
  input_.emplace(processes_.loop(), std::move(pipe.write_end), "", true);
  return std::move(pipe.read_end);
}

// The launcher's ends of the pipes belong to Output; the child's ends close here.
void RankStarts::start(int slot, const RankSpec& spec) {
  Started started{.slot = slot, .spec = spec, .process = process_name(spec.attempt, spec.rank)};
  const bool has_input = spec.rank == 0;
  const Fd terminal = has_input ? open_input() : Fd();
  int in = has_input ? STDIN_FILENO : -1;
  if (terminal.valid())
    in = terminal.get();
  const int folder = log_folder_.get();
  const Fd out = open_target(output_, folder, spec, spec.out, STDOUT_FILENO, 0, started.out);
  const Fd err =
      open_target(output_, folder, spec, spec.err, STDERR_FILENO, kTailBytes, started.err);
  started.at = Clock::now();
  processes_.spawn(slot,
                   {.argv = spec.argv,
                    .program = spec.program,
                    .environment = spec.environment,
                    .working_directory = spec.working_directory,
                    .stdin_fd = in,
                    .stdout_fd = out.get(),
                    .stderr_fd = err.get(),
                    .inherit_fds = inherit_fds_,
                    .cpus = spec.cpus});
  started.pid = processes_.pid_of(slot);
  started_.push_back(std::move(started));
}

size_t RankStarts::index_of(pid_t pid) const {
  return std::ranges::find(started_, pid, &Started::pid) - started_.begin();
}

bool RankStarts::has_follower(pid_t pid) const {
  const size_t at = index_of(pid);
  return at < started_.size() && newest_in(started_[at].slot) != at;
}

void RankStarts::forget(pid_t pid) {
  const auto started = started_.begin() + index_of(pid);
  for (const auto& stream : {started->out, started->err}) {
    if (stream)
      output_.forget(*stream);
  }
  started_.erase(started);
}

const RankStarts::Started& RankStarts::start_of(const ChildExit& end) const {
  return *std::ranges::find_if(started_, [&](const Started& started) {
    return started.slot == end.id && started.pid == end.pid;
  });
}

// The slot has had a process.
size_t RankStarts::newest_in(int slot) const {
  size_t at = started_.size() - 1;
  while (started_.at(at).slot != slot)
    --at;
  return at;
}

int RankStarts::rank_in(int slot) const {
  return started_[newest_in(slot)].spec.rank;
}

std::string RankStarts::process_in(int slot) const {
  return started_[newest_in(slot)].process;
}

// The process's streams stay where they are.
void RankStarts::become(int slot, const RankSpec& spec) {
  Started& started = started_[newest_in(slot)];
  started.spec.rank = spec.rank;
  started.spec.host = spec.host;
  started.earlier_error_file = std::exchange(started.spec.error_file, spec.error_file);
  for (const auto& stream : {started.out, started.err}) {
    if (stream)
      output_.set_prefix(*stream, spec.prefix);
  }
}

RankExit RankStarts::in_short(const ChildExit& end) const {
  const Started& started = start_of(end);
  return explain(end, started.spec, started.earlier_error_file, started.at);
}

// A rank whose standard error went into a file of its own has its last lines there.
RankExit RankStarts::explained(const ChildExit& end) const {
  RankExit exit = in_short(end);
  if (!exit.failed())
    return exit;
  const Started& started = start_of(end);
  add_lines(exit,
            started.err ? output_.last_lines(*started.err, kLinesWithStack)
                        : last_lines_of(started.spec.err.file));
  exit.lines_in_sight = started.err && started.spec.err.console && output_.in_sight(*started.err);
  return exit;
}

}  // namespace muster
