// The card has one part for each question of a reader: which rank failed and of what, where, when,
// what that means, the evidence, what is not certain, and how the others ended. failure_json says
// the same to programs.
#include "muster/launch/exit_report.h"

#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ranges>
#include <span>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/launch/failure_meaning.h"
#include "muster/launch/rank_exit_json.h"
#include "muster/launch/source_lines.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxStackLines = 30;
constexpr size_t kMostOfErrorFile = size_t{1} << 20;
constexpr size_t kShownOfLongFile = 2'000;

// The usual meaning of a signal, for people who do not know it by its name.
constexpr std::pair<int, const char*> kSignalHints[] = {
    {SIGSEGV, "segmentation fault"},
    {SIGBUS, "bus error: a mapped file was cut short, or /dev/shm is full"},
    {SIGABRT, "aborted: a failed assertion or an uncaught C++ exception"},
    {SIGILL, "illegal instruction: built for another CPU"},
    {SIGFPE, "arithmetic error: an integer divided by zero"},
    {SIGKILL, "sent by another process, or by the kernel when memory ran out (dmesg tells)"},
    {SIGUSR1, "sent by another process, or to muster, which passes it on to ranks"},
    {SIGUSR2, "sent by another process, or to muster, which passes it on to ranks"},
    {SIGPIPE, "it wrote to a pipe that nobody reads any more"}};

std::string indented(const Strings& lines) {
  return sum_of<std::string>(
      lines, [](const auto& line) { return cat("    | ", without_colors(line), "\n"); });
}

std::string first_line_of(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// The first `count` of the lines.
Strings beginning(const Strings& lines, size_t count) {
  const auto kept = std::span(lines).first(std::min(count, lines.size()));
  return {kept.begin(), kept.end()};
}

// The last `count` of the lines.
Strings last(const Strings& lines, size_t count) {
  const auto kept = std::span(lines).last(std::min(count, lines.size()));
  return {kept.begin(), kept.end()};
}

// All ranks' ends but for that one, which may be none.
auto ends_beside(const RankExits& exits, const RankExit* one) {
  return exits | std::views::filter([one](const RankExit& exit) { return &exit != one; });
}

// How a rank ended, and of what error. The card has the error of `told` (nullptr: of none) already.
std::string end_beside(const RankExit& exit, const RankExit* told) {
  std::string end = describe_end(exit);
  if (&exit == told || exit.message.empty() || !exit.failed())
    return end;
  if (told != nullptr && exit.message == told->message)
    return end + ", of the same error";
  return cat(end, ", ", first_line_of(exit.message));
}

// "rank 0, 2, 3: ended by muster (SIGTERM)": ranks whose ends read the same share a line.
std::string consequences(const RankExits& exits, const RankExit* first, const RankExit* told) {
  std::vector<std::pair<std::string, Ints>> groups;
  for (const RankExit& exit : ends_beside(exits, first)) {
    const auto end = end_beside(exit, told);
    if (groups.empty() || groups.back().first != end)
      groups.push_back({end, {}});
    groups.back().second.push_back(exit.rank);
  }
  std::string out;
  for (const auto& [end, ranks] : groups) {
    const char* const label = out.empty() ? "  then      " : "            ";
    out += cat(label, rank_list(ranks), ": ", end, "\n");
  }
  return out;
}

// Python's stack ends with the innermost calls; one of C++, muster's or LibTorch's, begins with
// them, and so does that of Python's faulthandler.
bool begins_with_innermost(const std::string& stack) {
  return trim(stack).starts_with("#") || has_text(stack, "\n  #0 ") ||
         has_text(stack, "frame #0: ") || has_text(stack, "(most recent call first)");
}

// The innermost calls of a stack, wherever they stand in it.
Strings innermost(const std::string& stack) {
  const std::string text(stack.substr(0, stack.find_last_not_of(" \n") + 1));
  const Strings lines = with_musters_calls_folded(split(text, '\n'));
  return begins_with_innermost(stack) ? beginning(lines, kMaxStackLines)
                                      : last(lines, kMaxStackLines);
}

// The last lines of the rank but for the error, which the card has.
Strings lines_beside_error(const RankExit& exit) {
  Strings lines = exit.last_lines;
  if (exit.message.empty())
    return lines;
  const auto error = first_line_of(exit.message);
  std::erase_if(lines, [&](const auto& line) { return has_text(line, error); });
  return lines;
}

// The part of the card about standard error. Lines that stand right above the card are not
// repeated.
std::string last_words(const RankExit& exit, const Strings& lines) {
  if (lines.empty())
    return "";
  if (!exit.lines_in_sight)
    return "  last lines of standard error\n" + indented(with_musters_calls_folded(lines));
  return exit.message.empty() ? "  said      its last lines of standard error are above\n" : "";
}

// What a message says after its first line; empty: no more.
std::string more_of(const std::string& message) {
  const size_t end = message.find('\n');
  if (end == npos)
    return "";
  return indented(last(split(message.substr(end + 1), '\n'), kMaxStackLines));
}

// The message and the stack; the last lines where there is neither, or no more than a signal's
// stack, unless they stand right above. Python's stack ends with the message.
std::string evidence(const RankExit& exit) {
  std::string out;
  if (!exit.message.empty())
    out += cat("  error     ", first_line_of(exit.message), "\n");
  const auto more = more_of(exit.message);
  const Strings lines = lines_beside_error(exit);
  if (exit.stack.empty())
    return out + (more.empty() ? last_words(exit, lines) : more);
  const bool told_above = exit.lines_in_sight && lines.size() < exit.last_lines.size();
  if (told_above)
    return out;
  if (begins_with_innermost(exit.stack))
    out += more;
  if (exit.message.empty())
    out += last_words(exit, lines);
  return out + "  stack\n" + indented(innermost(exit.stack));
}

// A rank that ended well, and too early: what it says of itself is nothing, but the others do.
std::string evidence_of_others(const RankExit& first) {
  return cat(
      "  meaning   the others wait for a rank that has ended: it called exit, or returned before a "
      "call that they make\n  error     rank ",
      first.rank,
      ": ",
      first.message.empty() ? first.cause : first_line_of(first.message),
      "\n");
}

// The call at which the ranks parted. That the card's own rank left the others needs no line.
std::string who_left(const RankExit& first, const FailureContext& context) {
  if (context.divergences.empty())
    return "";
  const Divergence& earliest = context.divergences.front();
  if (earliest.ranks == Ints{first.rank})
    return "";
  return cat("  apart     ", earliest.text(), "\n");
}

// A call at which the ranks parted, for failure.json.
Json divergence_json(const Divergence& divergence) {
  constexpr const char* kKinds[] = {"never_began", "other_call", "never_ended"};
  return {{"kind", kKinds[static_cast<int>(divergence.kind)]},
          {"group", divergence.group},
          {"sequence", divergence.sequence},
          {"call", divergence.call},
          {"theirs", divergence.theirs},
          {"ranks", divergence.ranks},
          {"others", divergence.others},
          {"where", divergence.where},
          {"text", divergence.text()}};
}

std::string restart_text(const FailureContext& context) {
  if (context.max_restarts == 0)
    return "";
  return cat(", restart ", context.restarts, " of ", context.max_restarts);
}

std::string report_line(const FailureContext& context) {
  return context.has_report ? cat("  report    ", context.run_dir, "/failure.json\n") : "";
}

// The card of a job that no rank has ended.
std::string fault_card(const RankExits& exits, const FailureContext& context) {
  return printable_lines(cat("[muster] ",
                             context.fault,
                             "\n  when      ",
                             context.time,
                             restart_text(context),
                             "\n",
                             consequences(exits, nullptr, nullptr),
                             report_line(context)));
}

// The rank that the card is about. It is not the one that failed if that failed of the loss of a
// rank that had left before.
struct FirstEnd {
  const RankExit* failed = nullptr;  // nullptr: no rank failed by itself
  const RankExit* left = nullptr;
  const RankExit* first = nullptr;
};

FirstEnd first_end(const RankExits& exits) {
  FirstEnd end{.failed = first_failure(exits)};
  if (end.failed != nullptr)
    end.left = left_early(exits, *end.failed);
  end.first = end.left != nullptr ? end.left : end.failed;
  return end;
}

const char* verb_of(const RankExit& first, size_t num_ranks) {
  if (!first.failed())
    return " ended first: ";
  return num_ranks > 1 ? " failed first: " : " failed: ";
}

std::string headline(const RankExits& exits, const FirstEnd& end) {
  const RankExit& first = *end.first;
  if (!is_cause_known(exits, first)) {
    return cat(
        "[muster] rank ", first.rank, " failed of the loss of another rank: ", first.cause, "\n");
  }
  // The end of one that was asked to end while it was on its way out says little.
  const bool returned = end.left != nullptr && first.sent_signal != 0;
  const bool others_waited = returned || !first.failed();
  return cat("[muster] rank ",
             first.rank,
             verb_of(first, exits.size()),
             returned ? "it returned from its function" : first.cause,
             others_waited ? ", while others waited for it" : "",
             "\n");
}

// A rank that failed in an attempt before.
Json failed_json(const RankExit& exit) {
  return {{"rank", exit.rank},
          {"host", exit.host},
          {"cause", exit.cause},
          {"message", exit.message},
          {"stack", exit.stack}};
}

// For each attempt before, what failed and what was done about it.
Json earlier_json(const FailureContext& context) {
  Json list = Json::array();
  for (size_t i = 0; i + 1 < context.attempts.size(); ++i) {
    const AttemptRecord& attempt = context.attempts[i];
    auto failed = attempt.exits | std::views::filter(&RankExit::failed_by_itself);
    list.push_back(
        {{"attempt", attempt.attempt},
         {"fault", attempt.fault},
         {"failed", mapped(failed, failed_json)},
         {"then",
          context.attempts[i + 1].in_place ? "replaced in place" : "all ranks started again"}});
  }
  return list;
}

// Whether the rank ended as should_stop() asks.
bool has_stopped(const RankExit& exit) {
  return exit.signal == 0 && exit.exit_code == kStoppedExitCode;
}

}  // namespace

bool have_stopped(const RankExits& exits) {
  return some_have_stopped(exits) &&
         all_of(exits, [](const RankExit& exit) { return has_stopped(exit) || !exit.started; });
}

bool some_have_stopped(const RankExits& exits) {
  return any_of(exits, has_stopped);
}

RankExits brief(RankExits exits) {
  constexpr size_t kWithEvidence = 4;
  size_t told = 0;
  for (RankExit& exit : exits) {
    exit.facts.account = account_of(exit);
    if (exit.failed_by_itself() && told++ < kWithEvidence)
      continue;
    exit.last_lines.clear();
    exit.stack.clear();
  }
  return exits;
}

std::string shown_stack(const std::string& stack) {
  return join(innermost(stack), "\n");
}

// The file may be any text: torchrun's JSON, other JSON, or a message. Text that is too long, or
// nests too deep, is not parsed.
std::optional<ReportedError> read_error_file(const std::string& path) {
  std::string text;
  try {
    text = read_plain_file(path, kMostOfErrorFile);
  } catch (const Error&) {
    return std::nullopt;  // the usual case: the rank reported nothing
  }
  if (trim(text).empty())
    return std::nullopt;
  if (text.size() > kMostOfErrorFile)
    return ReportedError{
        .message = cat(text.substr(0, kShownOfLongFile), "… (all of it: ", path, ")"), .stack = {}};
  const Json message = member_or_null(parsed_json<Json>(text), "message");
  if (message.is_string())
    return ReportedError{.message = message.get<std::string>(), .stack = {}};
  if (!message.is_object())
    return ReportedError{.message = text, .stack = {}};
  const Json extra = member_or_null(message, "extraInfo");
  return ReportedError{.message = text_or_empty(message, "message"),
                       .stack = text_or_empty(extra, "py_callstack"),
                       .facts = error_facts_from_json(member_or_null(extra, "muster"))};
}

// A signal that muster had sent is the cause of an end by a signal; a rank that ends with an exit
// code after it may have had its own reasons, so the code is said first.
std::string describe_end(const RankExit& exit) {
  if (!exit.started)
    return "not started: the job had ended before";
  if (exit.sent_signal != 0 && exit.signal != 0)
    return cat("ended by muster (", signal_name(exit.signal), ")");
  if (exit.signal != 0)
    return cat("killed by ",
               signal_name(exit.signal),
               " (",
               lookup(kSignalHints, exit.signal, "sent by another process"),
               ")");
  const auto code = cat("exit code ", exit.exit_code);
  if (exit.sent_signal == 0)
    return code;
  return cat(code, " after muster's ", signal_name(exit.sent_signal));
}

std::string cause_and_error(const RankExit& exit) {
  return exit.message.empty() ? exit.cause : cat(exit.cause, ", ", first_line_of(exit.message));
}

std::string failure_card(const RankExits& exits, const FailureContext& context) {
  if (!context.fault.empty())
    return fault_card(exits, context);
  const FirstEnd end = first_end(exits);
  if (end.first == nullptr)
    return {};
  const RankExit& first = *end.first;
  const bool ended_well = !first.failed();
  std::string out = headline(exits, end);
  out += cat("  where     host ", first.host, ", ", first.device, ", pid ", first.pid, "\n");
  out += cat("  when      ", context.time, ", ", format_duration(first.after), " after its start");
  out += restart_text(context) + "\n";
  out += ended_well ? evidence_of_others(*end.failed)
                    : framed("  meaning   ", failure_meaning(first), "\n") + evidence(first);
  out += context.full_disk;
  out += framed("  cause     ", doubt_about(exits, first), "\n");
  out += sum_of<std::string>(context.bad_gpus, [&](const BadGpu& gpu) {
    return framed("  GPU       ", describe({gpu}), "\n");
  });
  out += who_left(first, context);
  out += consequences(exits, end.first, ended_well ? end.failed : end.first);
  out += framed("  log       ", first.stderr_log, "\n");
  out += report_line(context);
  return printable_lines(out);
}

std::string failure_json(const RankExits& exits, const FailureContext& context) {
  const bool by_a_rank = context.fault.empty();
  const FirstEnd end = by_a_rank ? first_end(exits) : FirstEnd();
  Json json = {{"schema", "muster.failure/1"},
               {"run_id", context.run_id},
               {"time", context.time},
               {"attempt", context.attempt},
               {"max_restarts", context.max_restarts}};
  json["exit_code"] = by_a_rank ? Json(nullptr) : Json(kFaultExitCode);
  if (end.failed != nullptr)
    json["exit_code"] = end.failed->shell_code();
  json["fault"] = by_a_rank ? Json(nullptr) : Json(context.fault);
  json["first"] = nullptr;
  json["doubt"] = "";
  if (end.first != nullptr) {
    json["first"] = to_json(*end.first);
    json["doubt"] = doubt_about(exits, *end.first);
  }
  json["others"] =
      mapped(ends_beside(exits, end.first), [](const RankExit& exit) { return to_json(exit); });
  json["earlier"] = earlier_json(context);
  json["bad_gpus"] = mapped(context.bad_gpus, [](const BadGpu& gpu) {
    return Json{{"index", gpu.index.value}, {"uuid", gpu.uuid.value}, {"what", gpu.what}};
  });
  json["divergences"] = mapped(context.divergences, divergence_json);
  return json_text(json, 2) + "\n";
}

}  // namespace muster
