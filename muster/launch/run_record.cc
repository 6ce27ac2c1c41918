// run.json of a run's folder. Members that another version wrote are read where they are there and
// have their empty values otherwise; only the schema, the launches and their attempts must be
// there.
#include "muster/launch/run_record.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/device/inventory_json.h"
#include "muster/launch/json_members.h"
#include "muster/launch/rank_exit_json.h"

namespace muster {

namespace {

using RecordJson = nlohmann::ordered_json;

constexpr auto kRunSchema = "muster.run/1";

constexpr auto kAttemptMembers = [](auto& attempt, const auto& visit) {
  visit("attempt", attempt.attempt);
  visit("in_place", attempt.in_place);
  visit("began", attempt.began);
  visit("ended", attempt.ended);
  visit("fault", attempt.fault);
};

constexpr auto kLaunchRecordMembers = [](auto& launch, const auto& visit) {
  visit("run_id", launch.run_id);
  visit("argv", launch.argv);
  visit("more_argvs", launch.more_argvs);
  visit("work_dir", launch.work_dir);
  visit("host", launch.host);
  visit("muster_version", launch.muster_version);
  visit("libtorch", launch.libtorch);
  visit("backend", launch.backend);
  visit("device_names", launch.device_names);
  visit("pid", launch.pid);
  visit("max_restarts", launch.max_restarts);
  visit("began", launch.began);
  visit("ended", launch.ended);
};

RecordJson attempt_json(const AttemptRecord& attempt) {
  RecordJson json = members_to_json(attempt, kAttemptMembers);
  json["exits"] = mapped(attempt.exits, [](const RankExit& exit) { return to_json(exit); });
  return json;
}

// The newest `most` as an array. What is older is left out, so that the file stays small.
template <class T>
RecordJson newest_json(const std::vector<T>& all, size_t most, RecordJson (*to_json)(const T&)) {
  RecordJson array = RecordJson::array();
  for (size_t i = all.size() - std::min(all.size(), most); i < all.size(); ++i)
    array.push_back(to_json(all[i]));
  return array;
}

RecordJson launch_json(const LaunchRecord& launch) {
  RecordJson json = members_to_json(launch, kLaunchRecordMembers);
  json["exit_code"] = launch.ended ? RecordJson(launch.exit_code) : RecordJson(nullptr);
  json["outcome"] = launch.outcome;
  json["attempts"] = newest_json(launch.attempts, kMostAttempts, attempt_json);
  return json;
}

AttemptRecord attempt_from(const RecordJson& json) {
  AttemptRecord attempt;
  present_members_from_json(json, attempt, kAttemptMembers);
  attempt.exits = mapped(json.at("exits"), rank_exit_from_json);
  return attempt;
}

// Throws: nlohmann's exceptions for a launch without argv or attempts.
LaunchRecord launch_from(const RecordJson& json) {
  LaunchRecord launch{.argv = json.at("argv"), .outcome = json.value("outcome", "")};
  present_members_from_json(json, launch, kLaunchRecordMembers);
  if (launch.ended)
    launch.exit_code = json.value("exit_code", 0);
  launch.attempts = mapped(json.at("attempts"), attempt_from);
  return launch;
}

// Throws: nlohmann's exceptions and Error.
RunRecord record_from(const RecordJson& json, const std::string& source) {
  const std::string schema = json.at("schema");
  if (schema != kRunSchema)
    throw invalid_argument(schema);
  RunRecord record;
  record.launches = mapped(json.at("launches"), launch_from);
  const RecordJson machine = json.value("machine", RecordJson());
  if (machine.is_object())
    record.machine = inventory_from_json(machine.dump(), source);
  return record;
}

}  // namespace

// Program names need not be UTF-8; JSON must be.
std::string run_record_to_json(const RunRecord& record) {
  RecordJson machine;
  if (record.machine)
    machine = RecordJson::parse(inventory_to_json(*record.machine));
  const RecordJson document = {
      {"schema", kRunSchema},
      {"launches", newest_json(record.launches, kMostLaunches, launch_json)},
      {"machine", std::move(machine)}};
  return json_text(document, 1) + "\n";
}

// Whatever is wrong with the text, the error says what was expected and from where.
RunRecord run_record_from_json(const std::string& text, const std::string& source) {
  std::string got = "JSON of more than 64 levels";
  if (!nests_too_deep(text)) {
    try {
      return record_from(RecordJson::parse(text), source);
    } catch (const std::exception& error) {
      got = json_words(error.what());
    }
  }
  throw invalid_argument(
      source, ": expected the record of a run (", kRunSchema, "), got ", printable(got));
}

}  // namespace muster
