// A rank's end as JSON goes into failure.json, into run.json and to the coordinator of several
// hosts. A rank's own facts are read with care, as a rank has written them; all else muster wrote
// itself.
#include "muster/launch/rank_exit_json.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <ranges>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/launch/cause.h"
#include "muster/launch/failure_meaning.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

// A text may say anything, and a clock counts nanoseconds in 64 bits, which two times are to be
// taken from each other in. Not a number is 0.
milliseconds milliseconds_within(double count) {
  constexpr double kMost = 4.0e12;  // the year 2096
  if (std::isnan(count))
    return {};
  return milliseconds(static_cast<int64_t>(std::clamp(count, 0.0, kMost)));
}

// 0 for a name that is no signal's.
int signal_number(const std::string& name) {
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (signal_name(number) == name)
      return number;
  }
  return 0;
}

// How an account is written, in both directions.
constexpr std::pair<Account, const char*> kAccounts[] = {{Account::none, ""},
                                                         {Account::own_error, "own_error"},
                                                         {Account::connection, "connection"},
                                                         {Account::lost_peer, "lost_peer"}};

// `none` for a word of another version.
Account account_named(const std::string& text) {
  const auto* const row =
      element_where(kAccounts, [&](const auto& at) { return text == at.second; });
  return row != nullptr ? row->first : Account::none;
}

}  // namespace

Json to_json(const ErrorFacts& facts) {
  Json json = {
      {"code", facts.code}, {"lost_ranks", facts.lost_ranks}, {"left_early", facts.left_early}};
  return json;
}

namespace {

// The member, if it is a list; else null.
Json list_or_null(const Json& json, const char* name) {
  const Json found = member_or_null(json, name);
  return found.is_array() ? found : Json();
}

bool is_rank(const Json& value) {
  return value.is_number_integer() && value >= 0 && value <= INT32_MAX;
}

}  // namespace

// A rank wrote it: a member of another type than it should have is left out.
ErrorFacts error_facts_from_json(const Json& json) {
  ErrorFacts facts{.code = text_or_empty(json, "code"),
                   .signal = text_or_empty(json, "signal"),
                   .left_early = member_or_null(json, "left_early") == true};
  const Json said = list_or_null(json, "said");
  const auto is_text = std::views::filter([](const Json& line) { return line.is_string(); });
  facts.said = mapped(said | is_text, [](const Json& line) { return line.get<std::string>(); });
  const Json lost_ranks = list_or_null(json, "lost_ranks");
  facts.lost_ranks = mapped(lost_ranks | std::views::filter(is_rank),
                            [](const Json& rank) { return rank.get<int>(); });
  return facts;
}

// An exit code of null says that a signal ended the rank, or that it was never started.
Json to_json(const RankExit& exit) {
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
          {"account", lookup(kAccounts, account_of(exit), "")},
          {"last_lines", exit.last_lines},
          {"stderr_log", exit.stderr_log},
          {"seconds", in_seconds(exit.after)},
          {"unix_milliseconds",
           std::chrono::duration_cast<milliseconds>(exit.at.time_since_epoch()).count()},
          {"host_milliseconds", exit.host_clock.count()}};
}

// The signal that muster sent is not recorded; that there was one is, and SIGTERM stands for it.
// Throws: invalid_argument for what is no rank's end.
RankExit rank_exit_from_json(const Json& json) {
  try {
    RankExit exit{.rank = json.value("rank", 0),
                  .local_rank = json.value("local_rank", 0),
                  .host = json.value("host", ""),
                  .device = json.value("device", ""),
                  .pid = json.value("pid", 0),
                  .master_port = json.value("master_port", 0),
                  .cause = json.value("cause", ""),
                  .message = json.value("message", ""),
                  .stack = json.value("stack", ""),
                  .last_lines = json.value("last_lines", Strings()),
                  .stderr_log = json.value("stderr_log", "")};
    const Json code = json.value("exit_code", Json());
    const Json signal = json.value("signal", Json());
    if (!code.is_null())
      exit.exit_code = code.get<int>();
    if (!signal.is_null())
      exit.signal = signal_number(signal.get<std::string>());
    exit.started = exit.signal != 0 || !code.is_null();
    exit.facts = error_facts_from_json(json.value("facts", Json()));
    exit.facts.account = account_named(json.value("account", ""));
    if (json.value("ended_by", "itself") == "muster")
      exit.sent_signal = SIGTERM;
    exit.after = milliseconds_within(json.value("seconds", 0.0) * 1000);
    exit.at = WallTime(milliseconds_within(json.value("unix_milliseconds", 0.0)));
    exit.host_clock = milliseconds_within(json.value("host_milliseconds", 0.0));
    return exit;
  } catch (const nlohmann::json::exception& error) {
    throw invalid_argument("a rank's end: expected the JSON of one, got ",
                           json_words(error.what()));
  }
}

}  // namespace muster
