// A task of several ranks, or one that is a job of muster's itself, has printed a card of its own
// at the end of its log. That card says more than the task's could, so that it is shown in its
// place.
#include "muster/tasks/report/card.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/device/cpu_list.h"
#include "muster/launch/failure_meaning.h"
#include "muster/launch/full_disk.h"
#include "muster/tasks/hosts/task_log.h"

namespace muster {

namespace {

constexpr ptrdiff_t kCardLines = 20;
constexpr int kLinesWithCard = 80;  // of the log: a card and what was said before it
constexpr std::string_view kByMuster = "[muster] ";

// "[muster] rank 1 failed: …", "[muster] rank 1 of 4 failed first: …".
bool begins_card(const std::string& line) {
  if (!line.starts_with("[muster] rank "))
    return false;
  return any_of(std::array{" failed: ", " first: ", " failed of "},
                [&](const char* words) { return has_text(line, words); });
}

bool is_of_card(const std::string& line) {
  return line.starts_with("  ") || line.starts_with(kByMuster);
}

// The first line of the card with which the log ends: then the task was a job. The end of the lines
// where there is none, also where the task has gone on after such a card.
Strings::const_iterator card_in(const Strings& lines) {
  const auto last = std::find_if(lines.rbegin(), lines.rend(), begins_card);
  if (last == lines.rend())
    return lines.end();
  const bool ends_log = std::all_of(last.base(), lines.end(), is_of_card);
  return ends_log ? std::prev(last.base()) : lines.end();
}

// A line of a log, as a card shows it.
std::string shown(const std::string& line) {
  return printable(without_colors(line), "\t");
}

// The lines as a card quotes them.
std::string quoted(Strings::const_iterator from, Strings::const_iterator to) {
  std::string out;
  for (; from != to; ++from)
    out += cat("    | ", shown(*from), "\n");
  return out;
}

// The job's card as the task's. It left out the lines that stood right above it, which do not stand
// there any more: they are quoted.
std::string card_of_job(const Task& task,
                        const TaskAttempt& attempt,
                        const Strings& lines,
                        Strings::const_iterator card) {
  auto out = cat(kByMuster,
                 printable(task.name),
                 " failed: ",
                 shown(card->substr(kByMuster.size())),
                 restart_text(attempt),
                 "\n");
  for (auto line = card + 1; line != lines.end() && line->starts_with("  "); ++line) {
    if (!line->starts_with("  said ")) {
      out += shown(*line) + "\n";
    } else {
      const auto shown = std::min(card - lines.begin(), kCardLines);
      out += "  last lines\n" + quoted(card - shown, card);
    }
  }
  return out + cat("  log       ", attempt.log, "\n");
}

}  // namespace

std::string describe_devices(const TaskAttempt& attempt) {
  if (attempt.gpu_indices.empty())
    return attempt.cpus.empty() ? "the CPU" : cat("CPUs ", to_cpu_list(attempt.cpus));
  if (attempt.gpu_fraction < 1)
    return cat(attempt.gpu_fraction, " of GPU ", attempt.gpu_indices[0]);
  return cat(word_for(attempt.gpu_indices.size(), "GPU ", "GPUs "),
             join(attempt.gpu_indices, ", "));
}

std::string restart_text(const TaskAttempt& attempt) {
  return attempt.attempt > 0 ? cat(", restart ", attempt.attempt) : "";
}

// A card tells what happened, where, when, and what it may mean, and then quotes the log's end.
std::string task_card(const Task& task, const TaskResult& result) {
  auto out = cat("[muster] ", printable(task.name), " failed: ", printable(result.reason), "\n");
  if (result.attempts.empty())
    return out;
  const TaskAttempt& attempt = result.attempts.back();
  const Fd log(::open(attempt.log.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  Strings lines = last_lines_of_log(log.get(), kLinesWithCard);
  const auto card = card_in(lines);
  const bool by_itself = attempt.signal == 0 ? attempt.exit_code != 0 : task.ranks > 1;
  const bool has_own_card = card != lines.end();
  if (has_own_card && by_itself && !attempt.timed_out)
    return card_of_job(task, attempt, lines, card);
  if (std::ssize(lines) > kCardLines)
    lines.erase(lines.begin(), lines.end() - kCardLines);
  const double after = attempt.ended.value_or(attempt.began) - attempt.began;
  out += cat("  where     host ", attempt.host, ", ", describe_devices(attempt), "\n");
  out +=
      cat("  when      ", format_seconds(after), " after its start", restart_text(attempt), "\n");
  RankExit exit{.exit_code = attempt.exit_code, .signal = attempt.signal};
  exit.last_lines = std::move(lines);
  if (const auto meaning = failure_meaning(exit); !meaning.empty())
    out += cat("  meaning   ", meaning, "\n");
  out += full_disk_line(attempt.log, "the log", "the task");
  if (!exit.last_lines.empty())
    out += "  last lines\n";
  out += quoted(exit.last_lines.begin(), exit.last_lines.end());
  return out + cat("  log       ", attempt.log, "\n");
}

}  // namespace muster
