// Reports and orders as JSON. All hosts run the same version of muster, so every member must be
// there; only facts and plans, which few messages have, may be missing.
#include "muster/cluster/messages.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/inventory_json.h"
#include "muster/launch/worker_exit_json.h"
#include "muster/placement/plan_json.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

// The names are in the order of the kinds.
constexpr std::array<const char*, 6> kReportKinds = {
    "join", "failing", "ended", "leave", "lost", "stop"};
constexpr std::array<const char*, 4> kOrderKinds = {"start", "stop", "finish", "refuse"};

// The kind whose name stands at its place among `names`.
template <class Kind, size_t N>
Kind kind_of(const std::array<const char*, N>& names, const Json& json) {
  const auto name = json.at("kind").get<std::string>();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw Error(ErrorCode::invalid_argument,
                cat("message: expected a known kind, got '", printable(name), "'"));
  }
  return static_cast<Kind>(found - names.begin());
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Nothing for null, and for a member that is not there.
template <class T>
std::optional<T> optional_of(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null())
    return std::nullopt;
  return found->get<T>();
}

// The machine is text in the text, in the form of a captured file.
Json to_json(const HostFacts& facts) {
  return {
      {"id", facts.id},
      {"min_hosts", facts.min_hosts},
      {"max_hosts", facts.max_hosts},
      {"node_rank", or_null(facts.node_rank)},
      {"nproc", or_null(facts.nproc)},
      {"address", facts.address},
      {"master_port", facts.master_port},
      {"store", facts.store},
      {"muster_version", facts.muster_version},
      {"masks", {or_null(facts.masks.cuda), or_null(facts.masks.rocr), or_null(facts.masks.hip)}},
      {"devices", inventory_to_json({.source = "a host", .hosts = {facts.host}})}};
}

std::optional<std::string> text_or_nothing(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<std::string>());
}

// Throws: nlohmann's exceptions; as inventory_from_json.
HostFacts facts_from(const Json& json) {
  const std::string id = json.at("id").get<std::string>();
  const Inventory devices =
      inventory_from_json(json.at("devices").get<std::string>(), cat("what host ", id, " told"));
  const Json& masks = json.at("masks");
  return {.id = id,
          .min_hosts = json.at("min_hosts").get<int>(),
          .max_hosts = json.at("max_hosts").get<int>(),
          .node_rank = optional_of<int>(json, "node_rank"),
          .nproc = optional_of<int>(json, "nproc"),
          .address = json.at("address").get<std::string>(),
          .master_port = json.at("master_port").get<int>(),
          .store = json.at("store").get<std::string>(),
          .muster_version = json.at("muster_version").get<std::string>(),
          .masks = {.cuda = text_or_nothing(masks.at(0)),
                    .rocr = text_or_nothing(masks.at(1)),
                    .hip = text_or_nothing(masks.at(2))},
          .host = devices.hosts.at(0)};
}

Json to_json(const std::vector<WorkerExit>& exits) {
  Json list = Json::array();
  for (const WorkerExit& exit : exits)
    list.push_back(to_json(exit));
  return list;
}

std::vector<WorkerExit> exits_from(const Json& json) {
  std::vector<WorkerExit> exits;
  for (const Json& exit : json)
    exits.push_back(worker_exit_from_json(exit));
  return exits;
}

// What a rank printed, and a host's name, need not be UTF-8.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Calls `read` with the parsed text. Throws: invalid_argument that begins with `what`.
template <class Value>
Value parse(const std::string& text, const char* what, Value (*read)(const Json&)) {
  try {
    return read(Json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_argument,
                cat(what, ": expected JSON of this version of muster, got ", error.what()));
  }
}

}  // namespace

std::string to_text(const Report& report) {
  Json json = {{"kind", kReportKinds.at(static_cast<size_t>(report.kind))},
               {"from", report.from},
               {"number", report.number},
               {"round", report.round},
               {"exits", to_json(report.exits)},
               {"stopped_by", report.stopped_by},
               {"error", report.error},
               {"exit_code", report.exit_code}};
  if (report.facts)
    json["facts"] = to_json(*report.facts);
  return dump(json);
}

Report report_from_text(const std::string& text) {
  return parse<Report>(text, "report of a host", [](const Json& json) {
    Report report{.kind = kind_of<Report::Kind>(kReportKinds, json),
                  .from = json.at("from").get<std::string>(),
                  .number = json.at("number").get<int>(),
                  .round = json.at("round").get<int>(),
                  .exits = exits_from(json.at("exits")),
                  .stopped_by = json.at("stopped_by").get<int>(),
                  .error = json.at("error").get<std::string>(),
                  .exit_code = json.at("exit_code").get<int>()};
    if (json.contains("facts"))
      report.facts = facts_from(json.at("facts"));
    return report;
  });
}

std::string to_text(const Order& order) {
  Json json = {{"kind", kOrderKinds.at(static_cast<size_t>(order.kind))},
               {"round", order.round},
               {"hosts", order.hosts},
               {"run_folder", order.run_folder},
               {"launch", order.launch},
               {"in_place", order.in_place},
               {"pause_milliseconds", order.pause.count()},
               {"restart_count", order.restart_count},
               {"failures", order.failures},
               {"set_aside", order.set_aside},
               {"master_addr", order.master_addr},
               {"master_port", order.master_port},
               {"store", order.store},
               {"reason", order.reason},
               {"exit_code", order.exit_code},
               {"exits", to_json(order.exits)}};
  if (order.kind == Order::Kind::start)
    json["plan"] = plan_to_json(order.plan);
  return dump(json);
}

Order order_from_text(const std::string& text) {
  return parse<Order>(text, "order of the coordinator", [](const Json& json) {
    Order order{.kind = kind_of<Order::Kind>(kOrderKinds, json),
                .round = json.at("round").get<int>(),
                .hosts = json.at("hosts").get<std::vector<std::string>>(),
                .run_folder = json.at("run_folder").get<std::string>(),
                .launch = json.at("launch").get<std::string>(),
                .in_place = json.at("in_place").get<bool>(),
                .pause = std::chrono::milliseconds(json.at("pause_milliseconds").get<int64_t>()),
                .restart_count = json.at("restart_count").get<int>(),
                .failures = json.at("failures").get<std::map<std::string, int>>(),
                .set_aside = json.at("set_aside").get<std::set<std::string>>(),
                .master_addr = json.at("master_addr").get<std::string>(),
                .master_port = json.at("master_port").get<int>(),
                .store = json.at("store").get<std::string>(),
                .reason = json.at("reason").get<std::string>(),
                .exit_code = json.at("exit_code").get<int>(),
                .exits = exits_from(json.at("exits"))};
    if (json.contains("plan"))
      order.plan = plan_from_json(json.at("plan").get<std::string>(), "the job's plan");
    return order;
  });
}

}  // namespace muster
