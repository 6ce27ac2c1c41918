#include "muster/tasks/report/live_table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "muster/base/patient_write.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/tasks/report/card.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kDrawEvery{200};
constexpr size_t kFlushBytes = size_t{32} << 10;
constexpr int kLinesBeside = 4;          // of the terminal, not used by the table
constexpr double kLeastTimeLeft = 1e-3;  // seconds; what rounding leaves is none
constexpr size_t kMostSkippedNamed = 20;

// At most `width` characters; UTF-8 is cut between characters.
std::string cut_to(const std::string& text, int width) {
  int shown = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80U;
    if (begins && ++shown > width)
      return text.substr(0, i);
  }
  return text;
}

// That the last attempt took.
double seconds_of(const TaskResult& result) {
  if (result.attempts.empty())
    return 0;
  const TaskAttempt& attempt = result.attempts.back();
  return attempt.ended.value_or(attempt.began) - attempt.began;
}

}  // namespace

LiveTableOptions live_table_options(bool quiet) {
  LiveTableOptions options{
      .fd = STDERR_FILENO, .table = ::isatty(STDERR_FILENO) != 0, .quiet = quiet};
  winsize size = {};
  if (options.table && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.rows = size.ws_row;
    options.columns = size.ws_col;
  }
  return options;
}

LiveTable::LiveTable(const std::vector<Task>& tasks,
                     LiveTableOptions options,
                     const std::vector<TaskResult>& before)
    : tasks_(tasks), options_(options) {
  likes_of_.reserve(tasks.size());
  for (const Task& task : tasks) {
    likes_of_.push_back(like_of(task));
    ++likes_[likes_of_.back()].left;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].state == TaskState::done)
      count_done(i, before[i]);
  }
}

LiveTable::~LiveTable() {
  wipe();
  flush();
}

std::string LiveTable::where_of(const TaskAttempt& attempt) const {
  return options_.hosts ? cat(describe_devices(attempt), " of ", attempt.host)
                        : describe_devices(attempt);
}

size_t LiveTable::like_of(const Task& task) {
  const std::string key = task.at.line > 0    ? cat(task.at.line)
                          : task.argv.empty() ? std::string()
                                              : task.argv[0];
  const auto [place, is_new] = like_numbers_.emplace(key, likes_.size());
  if (is_new)
    likes_.emplace_back();
  return place->second;
}

void LiveTable::started(size_t task, const TaskAttempt& attempt) {
  running_[task] = attempt;
  if (options_.table || options_.quiet)
    return;
  say(cat("[muster] ",
          printable(tasks_[task].name),
          " started on ",
          where_of(attempt),
          restart_text(attempt),
          "\n"));
}

void LiveTable::count_done(size_t task, const TaskResult& result) {
  ++num_ended_;
  Like& like = likes_[likes_of_[task]];
  --like.left;
  ++like.done;
  like.seconds += seconds_of(result);
}

void LiveTable::ended(size_t task, const TaskResult& result) {
  running_.erase(task);
  const std::string name = printable(tasks_[task].name);
  const std::string span = format_seconds(seconds_of(result));
  if (!result.attempts.empty() && has_stopped(result.attempts.back()) &&
      result.state != TaskState::failed) {
    if (options_.quiet)
      return;
    return say(cat("[muster] ",
                   name,
                   " stopped after ",
                   span,
                   " (exit code 75), and is to be started again\n"));
  }
  if (result.state == TaskState::waiting)
    return say(cat(
        "[muster] ", name, " failed (", printable(result.reason), "); muster tries it again\n"));
  if (result.state == TaskState::failed) {
    ++num_ended_;
    --likes_[likes_of_[task]].left;
    return say(task_card(tasks_[task], result));
  }
  const bool done = result.state == TaskState::done;
  if (done)
    count_done(task, result);
  if (options_.table || options_.quiet)
    return;
  // What was interrupted has not ended for good: it is for the run that goes on.
  say(done ? cat("[muster] ",
                 name,
                 " done in ",
                 span,
                 " (",
                 num_ended_,
                 " of ",
                 tasks_.size(),
                 ")\n")
           : cat("[muster] ", name, " interrupted after ", span, "\n"));
}

void LiveTable::refused(size_t task, const TaskResult& result) {
  running_.erase(task);
  const std::string name = printable(tasks_[task].name);
  if (result.state == TaskState::skipped)
    return say(cat("[muster] ", name, " skipped: ", result.reason, "\n"));
  say(cat(
      "[muster] ", name, " could not begin (", printable(result.reason), "), and starts again\n"));
}

void LiveTable::skipped(const std::vector<size_t>& tasks, const std::string& reason) {
  num_ended_ += tasks.size();
  for (const size_t task : tasks)
    --likes_[likes_of_[task]].left;
  if (tasks.size() > kMostSkippedNamed)
    return say(cat("[muster] ", tasks.size(), " tasks skipped: ", reason, "\n"));
  for (const size_t task : tasks)
    say(cat("[muster] ", printable(tasks_[task].name), " skipped: ", reason, "\n"));
}

void LiveTable::note(const std::string& text) {
  say(cat("[muster] ", printable(text), "\n"));
  flush();
}

void LiveTable::say(const std::string& lines) {
  pending_ += lines;
  if (pending_.size() > kFlushBytes)
    flush();
}

// Nobody is waited for twice: a reader that has stopped costs the lines.
void LiveTable::flush() {
  if (pending_.empty())
    return;
  wipe();
  write_within(options_.fd, pending_, kReaderPatience);
  pending_.clear();
}

void LiveTable::wipe() {
  if (drawn_ == 0)
    return;
  write_within(options_.fd, cat("\x1b[", drawn_, "A\x1b[J"), kReaderPatience);
  drawn_ = 0;
}

// By the mean of like tasks, less what those that run have had of theirs; nothing where too little
// is known.
std::string LiveTable::time_left(size_t at_a_time, double now) const {
  double work = 0;
  for (const Like& like : likes_) {
    if (like.left == 0)
      continue;
    if (like.done == 0)
      return {};
    work += static_cast<double>(like.left) * like.mean();
  }
  double longest = 0;  // of those that run
  for (const auto& [task, attempt] : running_) {
    const double mean = likes_[likes_of_[task]].mean();
    const double left = std::max(0.0, mean - std::max(0.0, now - attempt.began));
    work -= mean - left;
    longest = std::max(longest, left);
  }
  const double seconds =
      std::max(longest, work / static_cast<double>(std::max<size_t>(1, at_a_time)));
  return seconds < kLeastTimeLeft ? std::string()
                                  : cat(", about ", format_seconds(std::ceil(seconds)), " left");
}

std::vector<std::string> LiveTable::lines(const TaskSchedule& schedule, double now) const {
  int64_t units = 0;
  int64_t cpus = 0;
  int64_t all_cpus = 0;
  for (const PoolHost& host : schedule.pool().hosts()) {
    cpus += host.cpus - host.cpus_left;
    all_cpus += host.cpus;
    for (const PoolGpu& gpu : host.gpus)
      units += kWholeGpu - gpu.units_left;
  }
  std::string head = cat(running_.size(),
                         " running · ",
                         schedule.count(TaskState::waiting),
                         " waiting · ",
                         schedule.count(TaskState::done),
                         " done");
  if (const size_t failed = schedule.count(TaskState::failed); failed > 0)
    head += cat(" · ", failed, " failed");
  if (const size_t skipped = schedule.count(TaskState::skipped); skipped > 0)
    head += cat(" · ", skipped, " skipped");
  if (schedule.pool().num_gpus() > 0)
    head +=
        cat("   GPUs ", static_cast<double>(units) / kWholeGpu, " of ", schedule.pool().num_gpus());
  head += cat("   CPUs ",
              cpus,
              " of ",
              all_cpus,
              "   ",
              format_seconds(std::floor(now)),
              time_left(schedule.num_running(), now));
  std::vector<std::string> lines = {cut_to(head, options_.columns)};
  size_t width = 0;
  for (const auto& [task, attempt] : running_)
    width = std::max(width, std::min<size_t>(40, tasks_[task].name.size()));
  const auto room = static_cast<size_t>(std::max(1, options_.rows - kLinesBeside));
  for (const auto& [task, attempt] : running_) {
    if (lines.size() == room) {
      lines.push_back(cat("  … ", running_.size() + 1 - room, " more"));
      break;
    }
    std::string name = printable(tasks_[task].name);
    name.resize(std::max(width, name.size()), ' ');
    lines.push_back(cut_to(cat("  ",
                               name,
                               "  ",
                               where_of(attempt),
                               "  ",
                               format_seconds(std::floor(now - attempt.began))),
                           options_.columns));
  }
  return lines;
}

void LiveTable::tick(const TaskSchedule& schedule, double now) {
  const auto moment = Clock::now();
  if (moment - last_drawn_ < kDrawEvery)
    return;
  last_drawn_ = moment;
  flush();
  if (!options_.table)
    return;
  wipe();
  const std::vector<std::string> table = lines(schedule, now);
  write_within(options_.fd, join(table, "\n") + "\n", kReaderPatience);
  drawn_ = table.size();
}

}  // namespace muster
