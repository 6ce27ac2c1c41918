#include "muster/launch/worker_exit_json.h"

#include <signal.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/launch/cause.h"
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
    if (signal_name(number) == name)
      return number;
  }
  return 0;
}

constexpr std::pair<Account, const char*> kAccounts[] = {{Account::none, ""},
                                                         {Account::own_error, "own_error"},
                                                         {Account::connection, "connection"},
                                                         {Account::lost_peer, "lost_peer"}};

const char* name_of(Account account) {
  for (const auto& [value, name] : kAccounts)
    if (value == account)
      return name;
  return "";
}

Account account_named(const std::string& text) {
  for (const auto& [value, name] : kAccounts)
    if (text == name)
      return value;
  return Account::none;
}

}  // namespace

Json to_json(const ErrorFacts& facts) {
  Json json = {
      {"code", facts.code}, {"lost_ranks", facts.lost_ranks}, {"left_early", facts.left_early}};
  return json;
}

// A rank wrote it: what has another type than it should have is left out.
ErrorFacts error_facts_from_json(const Json& json) {
  ErrorFacts facts;
  if (!json.is_object())
    return facts;
  const auto has = [&](const char* name, auto is) {
    return json.contains(name) && is(json[name]);
  };
  if (has("code", [](const Json& value) { return value.is_string(); }))
    facts.code = json["code"];
  if (has("left_early", [](const Json& value) { return value.is_boolean(); }))
    facts.left_early = json["left_early"];
  if (has("signal", [](const Json& value) { return value.is_string(); }))
    facts.signal = json["signal"];
  if (has("said", [](const Json& value) { return value.is_array(); })) {
    for (const Json& line : json["said"])
      if (line.is_string())
        facts.said.push_back(line);
  }
  if (!has("lost_ranks", [](const Json& value) { return value.is_array(); }))
    return facts;
  for (const Json& rank : json["lost_ranks"])
    if (rank.is_number_integer() && rank >= 0 && rank <= INT32_MAX)
      facts.lost_ranks.push_back(rank);
  return facts;
}

Json to_json(const WorkerExit& exit) {
  return {{"rank", exit.rank},
          {"local_rank", exit.local_rank},
          {"host", exit.host},
          {"device", exit.device},
          {"pid", exit.pid},
          {"master_port", exit.master_port},
          {"exit_code", exit.started && exit.signal == 0 ? Json(exit.exit_code) : Json(nullptr)},
          {"signal", exit.signal != 0 ? Json(signal_name(exit.signal)) : Json(nullptr)},
          {"ended_by", exit.sent_signal != 0 ? "muster" : "itself"},
          {"cause", exit.cause},
          {"meaning", failure_meaning(exit)},
          {"message", exit.message},
          {"stack", exit.stack},
          {"facts", to_json(exit.facts)},
          {"account", name_of(account_of(exit))},
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
                    .master_port = json.value("master_port", 0),
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
    exit.facts = error_facts_from_json(json.value("facts", Json()));
    exit.facts.account = account_named(json.value("account", ""));
    if (json.value("ended_by", "itself") == "muster")
      exit.sent_signal = SIGTERM;
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
