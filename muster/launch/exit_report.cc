#include "muster/launch/exit_report.h"

#include <signal.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/failure_meaning.h"
#include "muster/launch/worker_exit_json.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxStackLines = 30;

std::string signal_hint(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "segmentation fault";
    case SIGBUS:
      return "bus error: a mapped file was cut short, or /dev/shm is full";
    case SIGABRT:
      return "aborted: a failed assertion or an uncaught C++ exception";
    case SIGILL:
      return "illegal instruction: built for another CPU";
    case SIGFPE:
      return "arithmetic error: an integer divided by zero";
    case SIGKILL:
      return "sent by another process, or by the kernel when memory ran out (dmesg tells)";
    case SIGPIPE:
      return "it wrote to a pipe that nobody reads any more";
    default:
      return "sent by another process";
  }
}

std::string text_or_empty(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A rank that reports the loss of another has not failed first.
bool is_consequence(const WorkerExit& exit) {
  return exit.message.starts_with("peer_failed:");
}

std::string indented(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += cat("    | ", line, "\n");
  return out;
}

std::vector<std::string> last(std::vector<std::string> lines, size_t count) {
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(count));
  return lines;
}

// "rank 0, 2, 3: ended by muster (SIGTERM)", ends that read the same together.
std::string consequences(const std::vector<WorkerExit>& exits, const WorkerExit& first) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const WorkerExit& exit : exits) {
    if (&exit == &first) continue;
    const std::string end = describe_end(exit);
    if (groups.empty() || groups.back().first != end) groups.push_back({end, {}});
    groups.back().second.push_back(exit.rank);
  }
  std::string out;
  for (const auto& [end, ranks] : groups) {
    out += cat(out.empty() ? "  then      " : "            ", ranks.size() == 1 ? "rank " : "ranks ",
               join(ranks, ", "), ": ", end, "\n");
  }
  return out;
}

// The stack says it all when there is one (it ends with the message); else the message, else the last lines.
std::string evidence(const WorkerExit& exit) {
  std::string out;
  if (!exit.message.empty()) out += cat("  error     ", split(exit.message, '\n')[0], "\n");
  if (!exit.stack.empty()) {
    out += "  stack\n" + indented(last(split(trim(exit.stack), '\n'), kMaxStackLines));
  } else if (exit.message.find('\n') != std::string::npos) {
    out += indented(last(split(exit.message, '\n'), kMaxStackLines));
  } else if (!exit.last_lines.empty()) {
    out += "  last lines of standard error\n" + indented(exit.last_lines);
  }
  return out;
}

}  // namespace

std::optional<ReportedError> read_error_file(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error&) {
    return std::nullopt;  // the usual case: the rank reported nothing
  }
  if (trim(text).empty()) return std::nullopt;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return ReportedError{.message = text, .stack = {}};
  const Json& message = json["message"];
  if (message.is_string()) return ReportedError{.message = message.get<std::string>(), .stack = {}};
  if (!message.is_object()) return ReportedError{.message = text, .stack = {}};
  ReportedError error{.message = text_or_empty(message, "message"), .stack = {}};
  const auto extra = message.find("extraInfo");
  if (extra != message.end() && extra->is_object()) error.stack = text_or_empty(*extra, "py_callstack");
  return error;
}

std::string describe_end(const WorkerExit& exit) {
  if (exit.sent_signal != 0 && exit.signal != 0)
    return cat("ended by muster (", signal_name(exit.signal), ")");
  const std::string asked =
      exit.sent_signal != 0 ? cat(" after muster's ", signal_name(exit.sent_signal)) : std::string();
  if (exit.signal != 0) {
    return cat("killed by ", signal_name(exit.signal), " (", signal_hint(exit.signal), ")");
  }
  return cat("exit code ", exit.exit_code, asked);
}

const WorkerExit* first_failure(const std::vector<WorkerExit>& exits) {
  const WorkerExit* first = nullptr;
  for (const WorkerExit& exit : exits) {
    if (!exit.failed() || exit.sent_signal != 0) continue;
    if (first == nullptr) first = &exit;
    if (!is_consequence(exit)) return &exit;
  }
  // All that ended by themselves say that they lost a peer: which is one that was still on its way out, and
  // told why. One that our signal killed was not on its way out.
  for (const WorkerExit& exit : exits) {
    const bool by_itself = exit.failed() && exit.signal == 0;
    if (first != nullptr && by_itself && !exit.message.empty() && !is_consequence(exit)) return &exit;
  }
  return first;
}

std::string failure_card(const std::vector<WorkerExit>& exits, const FailureContext& context) {
  const WorkerExit* first = first_failure(exits);
  if (first == nullptr) return {};
  std::string out = cat("[muster] rank ", first->rank,
                        exits.size() > 1 ? " failed first: " : " failed: ", first->cause, "\n");
  out += cat("  where     host ", first->host, ", ", first->device, ", pid ", first->pid, "\n");
  out += cat("  when      ", context.time, ", ", format_duration(first->after), " after its start");
  if (context.max_restarts > 0) out += cat(", restart ", context.restarts, " of ", context.max_restarts);
  out += "\n";
  if (const std::string meaning = failure_meaning(*first); !meaning.empty())
    out += cat("  meaning   ", meaning, "\n");
  out += evidence(*first);
  out += consequences(exits, *first);
  if (!first->stderr_log.empty()) out += cat("  log       ", first->stderr_log, "\n");
  if (context.has_report) out += cat("  report    ", context.run_dir, "/failure.json\n");
  return out;
}

std::string failure_json(const std::vector<WorkerExit>& exits, const FailureContext& context) {
  const WorkerExit* first = first_failure(exits);
  Json json = {{"schema", "muster.failure/1"},
               {"run_id", context.run_id},
               {"time", context.time},
               {"attempt", context.attempt},
               {"max_restarts", context.max_restarts}};
  json["exit_code"] = first != nullptr ? Json(first->shell_code()) : Json(nullptr);
  json["first"] = first != nullptr ? to_json(*first) : Json(nullptr);
  json["others"] = Json::array();
  for (const WorkerExit& exit : exits) {
    if (&exit != first) json["others"].push_back(to_json(exit));
  }
  // What a rank printed need not be UTF-8; JSON must be.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster
