#include "muster/launch/worker_exit_json.h"

#include <signal.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/launch/failure_meaning.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

int64_t milliseconds_of(std::chrono::system_clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch()).count();
}

int signal_number(const std::string& name) {
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (signal_name(number) == name) return number;
  }
  return 0;
}

}  // namespace

Json to_json(const WorkerExit& exit) {
  return {{"rank", exit.rank},
          {"local_rank", exit.local_rank},
          {"host", exit.host},
          {"device", exit.device},
          {"pid", exit.pid},
          {"exit_code", exit.started && exit.signal == 0 ? Json(exit.exit_code) : Json(nullptr)},
          {"signal", exit.signal != 0 ? Json(signal_name(exit.signal)) : Json(nullptr)},
          {"ended_by", exit.sent_signal != 0 ? "muster" : "itself"},
          {"cause", exit.cause},
          {"meaning", failure_meaning(exit)},
          {"message", exit.message},
          {"stack", exit.stack},
          {"last_lines", exit.last_lines},
          {"stderr_log", exit.stderr_log},
          {"seconds", static_cast<double>(exit.after.count()) / 1000},
          {"unix_milliseconds", milliseconds_of(exit.at)}};
}

WorkerExit worker_exit_from_json(const Json& json) {
  try {
    WorkerExit exit{.rank = json.value("rank", 0),
                    .local_rank = json.value("local_rank", 0),
                    .host = json.value("host", ""),
                    .device = json.value("device", ""),
                    .pid = json.value("pid", 0),
                    .cause = json.value("cause", ""),
                    .message = json.value("message", ""),
                    .stack = json.value("stack", ""),
                    .last_lines = json.value("last_lines", std::vector<std::string>()),
                    .stderr_log = json.value("stderr_log", "")};
    if (const auto code = json.find("exit_code"); code != json.end() && !code->is_null())
      exit.exit_code = code->get<int>();
    if (const auto signal = json.find("signal"); signal != json.end() && !signal->is_null())
      exit.signal = signal_number(signal->get<std::string>());
    exit.started = exit.signal != 0 || !json.value("exit_code", Json()).is_null();
    if (json.value("ended_by", "itself") == "muster") exit.sent_signal = SIGTERM;
    exit.after = std::chrono::milliseconds(static_cast<int64_t>(json.value("seconds", 0.0) * 1000));
    exit.at = std::chrono::system_clock::time_point(
        std::chrono::milliseconds(json.value("unix_milliseconds", int64_t{0})));
    return exit;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_argument,
                cat("a rank's end: expected the JSON of one, got ", error.what()));
  }
}

}  // namespace muster
