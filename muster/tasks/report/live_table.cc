// Lines that are to stay are gathered, and written above the table, which is wiped first and drawn
// again with the next tick. On a terminal the table says what runs, so that starts and ends that
// went well are no lines of their own.
#include "muster/tasks/report/live_table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "muster/base/indices_of.h"
#include "muster/base/patient_write.h"
#include "muster/base/units.h"
#include "muster/base/utf8.h"
#include "muster/tasks/report/card.h"

namespace muster {

namespace {

constexpr milliseconds kDrawEvery{200};
constexpr size_t kFlushBytes = size_t{32} << 10;
constexpr int kLinesBeside = 4;          // of the terminal, not used by the table
constexpr double kLeastTimeLeft = 1e-3;  // seconds; what rounding leaves is none
constexpr size_t kMostSkippedNamed = 20;

// At most `width` characters; UTF-8 is cut between characters.
std::string cut_to(const std::string& text, int width) {
  int shown = 0;
  for (const size_t i : indices_of(text)) {
    if (!continues_character(text[i]) && ++shown > width)
      return text.substr(0, i);
  }
  return text;
}

// How long the last attempt took.
double seconds_of(const TaskResult& result) {
  if (result.attempts.empty())
    return 0;
  const TaskAttempt& attempt = result.attempts.back();
  return attempt.ended.value_or(attempt.began) - attempt.began;
}

}  // namespace

// A terminal that does not tell its size is taken for one of 24 by 80.
LiveTableOptions live_table_options(bool quiet) {
  LiveTableOptions options{
      .fd = STDERR_FILENO, .table = ::isatty(STDERR_FILENO) != 0, .quiet = quiet};
  winsize size{};
  if (options.table && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.rows = size.ws_row;
    options.columns = size.ws_col;
  }
  return options;
}

LiveTable::LiveTable(const Tasks& tasks, LiveTableOptions options, const TaskResults& before)
    : tasks_(tasks), options_(options) {
  likes_of_.reserve(tasks.size());
  for (const Task& task : tasks) {
    likes_of_.push_back(like_of(task));
    ++likes_[likes_of_.back()].left;
  }
  for (const size_t i : indices_of(before)) {
    if (before[i].state == TaskState::done)
      count_done(i, before[i]);
  }
}

LiveTable::~LiveTable() {
  wipe();
  flush();
}

std::string LiveTable::where_of(const TaskAttempt& attempt) const {
  const auto devices = describe_devices(attempt);
  return options_.hosts ? cat(devices, " of ", attempt.host) : devices;
}

// Tasks that take about as long have one number: those of one table, else those of one program.
size_t LiveTable::like_of(const Task& task) {
  std::string key;
  if (task.at.line > 0)
    key = cat(task.at.line);
  else if (!task.argv.empty())
    key = task.argv[0];
  const auto [place, is_new] = like_numbers_.emplace(key, likes_.size());
  if (is_new)
    likes_.emplace_back();
  return place->second;
}

void LiveTable::say_task(size_t task, const std::string& what) {
  say(cat("[muster] ", printable(tasks_[task].name), " ", what, "\n"));
}

// The ranks of a task that could not begin may find no room again.
void LiveTable::started(size_t task, const TaskAttempt& attempt) {
  running_[task] = attempt;
  const bool is_certain = tasks_[task].ranks == 1 || !starved_.contains(task);
  if (!options_.table && !options_.quiet && is_certain)
    say_task(task, cat("started on ", where_of(attempt), restart_text(attempt)));
}

void LiveTable::count_done(size_t task, const TaskResult& result) {
  count_undone(task);
  Like& like = likes_[likes_of_[task]];
  ++like.done;
  like.seconds += seconds_of(result);
}

// The task has ended for good, and its time tells nothing of others'.
void LiveTable::count_undone(size_t task) {
  ++num_ended_;
  --likes_[likes_of_[task]].left;
}

// An end is worth a line or not by where it is shown: a terminal's table shows what went well, and
// a quiet run shows failures alone.
void LiveTable::ended(size_t task, const TaskResult& result) {
  running_.erase(task);
  taken_.erase(task);
  starved_.erase(task);
  if (result.state == TaskState::failed) {
    count_undone(task);
    return say(task_card(tasks_[task], result));
  }
  const auto span = format_seconds(seconds_of(result));
  const bool stopped = !result.attempts.empty() && has_stopped(result.attempts.back());
  if (stopped) {
    if (!options_.quiet)
      say_task(task, cat("stopped after ", span, " (exit code 75), and is to be started again"));
    return;
  }
  if (result.state == TaskState::waiting)
    return say_task(task, cat("failed (", printable(result.reason), "); muster tries it again"));
  const bool done = result.state == TaskState::done;
  if (done)
    count_done(task, result);
  if (options_.table || options_.quiet)
    return;
  if (done)
    say_task(task, cat("done in ", span, " (", num_ended_, " of ", tasks_.size(), ")"));
  else  // it has not ended for good: it is for the run that goes on
    say_task(task, cat("interrupted after ", span));
}

// The start counts as none: what earlier attempts came to stands. A task may need many, and says so
// of each reason once.
void LiveTable::refused(size_t task, const TaskResult& result, bool starved) {
  running_.erase(task);
  if (result.state == TaskState::skipped)
    return say_task(task, cat("skipped: ", result.reason));
  if ((starved ? starved_ : taken_).insert(task).second)
    say_task(task, cat("could not begin (", printable(result.reason), "), and starts again"));
}

void LiveTable::skipped(const Indices& tasks, const std::string& reason) {
  for (const size_t task : tasks)
    count_undone(task);
  if (tasks.size() > kMostSkippedNamed)
    return say(cat("[muster] ", tasks.size(), " tasks skipped: ", reason, "\n"));
  for (const size_t task : tasks)
    say_task(task, cat("skipped: ", reason));
}

// A note is seen at once: it may say what the run waits for.
void LiveTable::note(const std::string& text) {
  say(cat("[muster] ", printable(text), "\n"));
  flush();
}

void LiveTable::say(const std::string& lines) {
  pending_ += lines;
  if (pending_.size() > kFlushBytes)
    flush();
}

// A reader that has stopped costs the lines: nobody is waited for twice.
void LiveTable::flush() {
  if (pending_.empty())
    return;
  wipe();
  write_within(options_.fd, pending_, kReaderPatience);
  pending_.clear();
}

// Moves to the table's first line, and clears all below.
void LiveTable::wipe() {
  if (drawn_ == 0)
    return;
  write_within(options_.fd, cat("\x1b[", drawn_, "A\x1b[J"), kReaderPatience);
  drawn_ = 0;
}

// The time that is left by the mean of like tasks, less what those that run have had of theirs;
// empty where too little is known. The work that is left is shared by as many as run at a time, and
// takes at least as long as the longest of those.
std::string LiveTable::time_left(size_t at_a_time, double now) const {
  double work = 0;
  for (const Like& like : likes_) {
    if (like.left > 0 && like.done == 0)
      return {};
    work += like.left * like.mean();
  }
  double longest = 0;  // of those that run
  for (const auto& [task, attempt] : running_) {
    const double mean = likes_[likes_of_[task]].mean();
    const double left = std::max(0.0, mean - std::max(0.0, now - attempt.began));
    work -= mean - left;
    longest = std::max(longest, left);
  }
  const auto share = static_cast<double>(std::max<size_t>(1, at_a_time));
  const double seconds = std::max(longest, work / share);
  if (seconds < kLeastTimeLeft)
    return {};
  return cat(", about ", format_seconds(std::ceil(seconds)), " left");
}

// "2 running · 3 waiting · 1 done   GPUs 2 of 4   CPUs 2 of 16   1m20s, about 2m left".
std::string LiveTable::head(const TaskSchedule& schedule, double now) const {
  int units = 0;
  int cpus = 0;
  int all_cpus = 0;
  for (const PoolHost& host : schedule.pool().hosts()) {
    cpus += host.cpus - host.cpus_left;
    all_cpus += host.cpus;
    for (const PoolGpu& gpu : host.gpus)
      units += kWholeGpu - gpu.units_left;
  }
  auto head = cat(running_.size(), " running");
  head += cat(" · ", schedule.count(TaskState::waiting), " waiting");
  head += cat(" · ", schedule.count(TaskState::done), " done");
  if (const size_t failed = schedule.count(TaskState::failed); failed > 0)
    head += cat(" · ", failed, " failed");
  if (const size_t skipped = schedule.count(TaskState::skipped); skipped > 0)
    head += cat(" · ", skipped, " skipped");
  if (schedule.pool().num_gpus() > 0)
    head += cat("   GPUs ", 1.0 * units / kWholeGpu, " of ", schedule.pool().num_gpus());
  head += cat("   CPUs ", cpus, " of ", all_cpus);
  head += cat("   ", format_seconds(std::floor(now)), time_left(schedule.num_running(), now));
  return head;
}

// The head, and a line for each task that runs, as many as the terminal has room for.
Strings LiveTable::lines(const TaskSchedule& schedule, double now) const {
  constexpr size_t kWidestName = 40;
  Strings lines = {cut_to(head(schedule, now), options_.columns)};
  size_t width = 0;
  for (const auto& [task, attempt] : running_)
    width = std::max(width, std::min(kWidestName, tasks_[task].name.size()));
  const size_t room = std::max(1, options_.rows - kLinesBeside);
  for (const auto& [task, attempt] : running_) {
    if (lines.size() == room) {
      lines.push_back(cat("  … ", running_.size() + 1 - room, " more"));
      break;
    }
    auto name = printable(tasks_[task].name);
    name.resize(std::max(width, name.size()), ' ');
    const auto time = format_seconds(std::floor(now - attempt.began));
    lines.push_back(cut_to(cat("  ", name, "  ", where_of(attempt), "  ", time), options_.columns));
  }
  return lines;
}

// The table is drawn five times a second at most, however often things happen.
void LiveTable::tick(const TaskSchedule& schedule, double now) {
  const auto moment = Clock::now();
  if (moment - last_drawn_ < kDrawEvery)
    return;
  last_drawn_ = moment;
  flush();
  if (!options_.table)
    return;
  wipe();
  const Strings table = lines(schedule, now);
  write_within(options_.fd, join(table, "\n") + "\n", kReaderPatience);
  drawn_ = table.size();
}

}  // namespace muster
