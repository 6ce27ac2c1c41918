#include "muster/launch/run_record.h"

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/strings.h"
#include "muster/device/inventory_json.h"
#include "muster/launch/worker_exit_json.h"

namespace muster {

namespace {

using RecordJson = nlohmann::ordered_json;

constexpr const char* kRunSchema = "muster.run/1";

RecordJson time_json(const std::optional<double>& time) {
  return time ? RecordJson(*time) : RecordJson(nullptr);
}

std::optional<double> time_from(const RecordJson& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null())
    return std::nullopt;
  return found->get<double>();
}

RecordJson attempt_json(const AttemptRecord& attempt) {
  RecordJson exits = RecordJson::array();
  for (const WorkerExit& exit : attempt.exits)
    exits.push_back(to_json(exit));
  return {{"attempt", attempt.attempt},
          {"in_place", attempt.in_place},
          {"began", attempt.began},
          {"ended", time_json(attempt.ended)},
          {"fault", attempt.fault},
          {"exits", std::move(exits)}};
}

RecordJson launch_json(const LaunchRecord& launch) {
  RecordJson attempts = RecordJson::array();
  const size_t first =
      launch.attempts.size() > kMostAttempts ? launch.attempts.size() - kMostAttempts : 0;
  for (size_t i = first; i < launch.attempts.size(); ++i)
    attempts.push_back(attempt_json(launch.attempts[i]));
  return {{"run_id", launch.run_id},
          {"argv", launch.argv},
          {"more_argvs", launch.more_argvs},
          {"work_dir", launch.work_dir},
          {"host", launch.host},
          {"muster_version", launch.muster_version},
          {"libtorch", launch.libtorch},
          {"backend", launch.backend},
          {"device_names", launch.device_names},
          {"pid", launch.pid},
          {"max_restarts", launch.max_restarts},
          {"began", launch.began},
          {"ended", time_json(launch.ended)},
          {"exit_code", launch.ended ? RecordJson(launch.exit_code) : RecordJson(nullptr)},
          {"outcome", launch.outcome},
          {"attempts", std::move(attempts)}};
}

AttemptRecord attempt_from(const RecordJson& json) {
  AttemptRecord attempt{.attempt = json.value("attempt", 0),
                        .in_place = json.value("in_place", false),
                        .began = json.value("began", 0.0),
                        .ended = time_from(json, "ended"),
                        .fault = json.value("fault", "")};
  for (const RecordJson& exit : json.at("exits"))
    attempt.exits.push_back(worker_exit_from_json(exit));
  return attempt;
}

LaunchRecord launch_from(const RecordJson& json) {
  LaunchRecord launch{
      .run_id = json.value("run_id", ""),
      .argv = json.at("argv"),
      .more_argvs = json.value("more_argvs", std::vector<std::vector<std::string>>()),
      .work_dir = json.value("work_dir", ""),
      .host = json.value("host", ""),
      .muster_version = json.value("muster_version", ""),
      .libtorch = json.value("libtorch", ""),
      .backend = json.value("backend", ""),
      .device_names = json.value("device_names", std::vector<std::string>()),
      .pid = json.value("pid", 0),
      .max_restarts = json.value("max_restarts", 0),
      .began = json.value("began", 0.0),
      .ended = time_from(json, "ended"),
      .outcome = json.value("outcome", "")};
  if (launch.ended)
    launch.exit_code = json.value("exit_code", 0);
  for (const RecordJson& attempt : json.at("attempts"))
    launch.attempts.push_back(attempt_from(attempt));
  return launch;
}

// Throws: nlohmann's exceptions and Error.
RunRecord record_from(const RecordJson& json, const std::string& source) {
  const std::string schema = json.at("schema");
  if (schema != kRunSchema)
    throw Error(ErrorCode::invalid_argument, schema);
  RunRecord record;
  for (const RecordJson& launch : json.at("launches"))
    record.launches.push_back(launch_from(launch));
  if (const auto machine = json.find("machine"); machine != json.end() && machine->is_object())
    record.machine = inventory_from_json(machine->dump(), source);
  return record;
}

}  // namespace

std::string run_record_to_json(const RunRecord& record) {
  RecordJson launches = RecordJson::array();
  const size_t first =
      record.launches.size() > kMostLaunches ? record.launches.size() - kMostLaunches : 0;
  for (size_t i = first; i < record.launches.size(); ++i)
    launches.push_back(launch_json(record.launches[i]));
  const RecordJson document = {
      {"schema", kRunSchema},
      {"launches", std::move(launches)},
      {"machine",
       record.machine ? RecordJson::parse(inventory_to_json(*record.machine)) : RecordJson()}};
  return document.dump(1, ' ', false, RecordJson::error_handler_t::replace) + "\n";
}

RunRecord run_record_from_json(const std::string& text, const std::string& source) {
  std::string got = "JSON of more than 64 levels";
  if (!nests_too_deep(text)) {
    try {
      return record_from(RecordJson::parse(text), source);
    } catch (const std::exception& error) {
      got = error.what();
    }
  }
  throw Error(
      ErrorCode::invalid_argument,
      cat(source, ": expected the record of a run (", kRunSchema, "), got ", printable(got)));
}

}  // namespace muster
