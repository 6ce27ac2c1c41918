// Reports and orders as JSON, compressed where that saves something. All hosts run the same version
// of muster, so every member must be there; only facts and plans, which few messages have, may be
// missing.
#include "muster/cluster/messages.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "muster/base/compress.h"
#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/inventory_json.h"
#include "muster/launch/json_members.h"
#include "muster/launch/rank_exit_json.h"
#include "muster/placement/plan_json.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPlainBytes = 1 << 10;         // a message of less is sent as it is
constexpr size_t kMostBytes = size_t{1} << 30;  // of a message's text

// The names are in the order of the kinds.
constexpr std::array<const char*, 6> kReportKinds = {
    "join", "failing", "ended", "leave", "lost", "stop"};
constexpr std::array<const char*, 4> kOrderKinds = {"start", "stop", "finish", "refuse"};

// The names stand at their kinds' places.
template <class Kind, size_t N>
const char* name_of(const std::array<const char*, N>& names, Kind kind) {
  return names.at(static_cast<size_t>(kind));
}

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

// The members of a host's facts that are written as they are. The templates serve both directions.
template <class Facts, class Visit>
void visit_facts(Facts& facts, const Visit& visit) {
  visit("id", facts.id);
  visit("min_hosts", facts.min_hosts);
  visit("max_hosts", facts.max_hosts);
  visit("node_rank", facts.node_rank);
  visit("nproc", facts.nproc);
  visit("address", facts.address);
  visit("master_port", facts.master_port);
  visit("store", facts.store);
  visit("muster_version", facts.muster_version);
}

template <class AnyReport, class Visit>
void visit_report(AnyReport& report, const Visit& visit) {
  visit("from", report.from);
  visit("number", report.number);
  visit("round", report.round);
  visit("stopped_by", report.stopped_by);
  visit("error", report.error);
  visit("exit_code", report.exit_code);
}

template <class AnyOrder, class Visit>
void visit_order(AnyOrder& order, const Visit& visit) {
  visit("round", order.round);
  visit("hosts", order.hosts);
  visit("run_folder", order.run_folder);
  visit("launch", order.launch);
  visit("in_place", order.in_place);
  visit("pause_milliseconds", order.pause);
  visit("restart_count", order.restart_count);
  visit("failures", order.failures);
  visit("set_aside", order.set_aside);
  visit("master_addr", order.master_addr);
  visit("master_port", order.master_port);
  visit("store", order.store);
  visit("reason", order.reason);
  visit("exit_code", order.exit_code);
}

// Removes what is not known, at any depth.
Json without_nulls(const Json& json) {
  if (!json.is_structured())
    return json;
  Json kept = json.is_object() ? Json::object() : Json::array();
  for (const auto& [key, value] : json.items()) {
    if (json.is_array()) {
      kept.push_back(without_nulls(value));
    } else if (!value.is_null()) {
      kept[key] = without_nulls(value);
    }
  }
  return kept;
}

// The machine is text in the text: a captured file without blanks and nulls.
Json to_json(const HostFacts& facts) {
  const VisibilityMasks& masks = facts.masks;
  Json json = members_to_json([&](const auto& visit) { visit_facts(facts, visit); });
  json["masks"] =
      Json::array({member_json(masks.cuda), member_json(masks.rocr), member_json(masks.hip)});
  const std::string devices = inventory_to_json({.source = "a host", .hosts = {facts.host}});
  json["devices"] = without_nulls(Json::parse(devices)).dump();
  return json;
}

// Throws: nlohmann's exceptions; as inventory_from_json.
HostFacts facts_from(const Json& json) {
  HostFacts facts;
  members_from_json(json, [&](const auto& visit) { visit_facts(facts, visit); });
  const Json& masks = json.at("masks");
  take_member(masks.at(0), facts.masks.cuda);
  take_member(masks.at(1), facts.masks.rocr);
  take_member(masks.at(2), facts.masks.hip);
  const auto devices = json.at("devices").get<std::string>();
  facts.host = inventory_from_json(devices, cat("what host ", facts.id, " told")).hosts.at(0);
  return facts;
}

// The ends keep their order: the cause stands first.
Json to_json(const std::vector<RankExit>& exits) {
  return mapped(exits, [](const RankExit& exit) { return to_json(exit); });
}

// Throws: invalid_argument, nlohmann's exceptions.
std::vector<RankExit> exits_from(const Json& json) {
  return mapped(json, rank_exit_from_json);
}

// A rank's lines and a host's name need not be UTF-8.
std::string dump(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() < kPlainBytes ? text : compressed(text);
}

// Calls `read` with the parsed message. Throws: invalid_argument that begins with `what`.
template <class Value>
Value parse(const std::string& message, const char* what, Value (*read)(const Json&)) {
  try {
    const std::string text = is_compressed(message) ? uncompressed(message, kMostBytes) : message;
    check_json_depth(text, what);
    return read(Json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorCode::invalid_argument,
        cat(what, ": expected JSON of this version of muster, got ", json_words(error.what())));
  }
}

}  // namespace

std::string sign_of_life_key(const std::string& id) {
  return cat("alive/", id);
}

const char* to_string(Report::Kind kind) {
  return name_of(kReportKinds, kind);
}

const char* to_string(Order::Kind kind) {
  return name_of(kOrderKinds, kind);
}

// A host that joins tells its facts; other reports have none.
std::string to_text(const Report& report) {
  Json json = members_to_json([&](const auto& visit) { visit_report(report, visit); });
  json["kind"] = to_string(report.kind);
  json["exits"] = to_json(report.exits);
  if (report.facts)
    json["facts"] = to_json(*report.facts);
  return dump(json);
}

Report report_from_text(const std::string& text) {
  return parse<Report>(text, "report of a host", [](const Json& json) {
    Report report{.kind = kind_of<Report::Kind>(kReportKinds, json)};
    members_from_json(json, [&](const auto& visit) { visit_report(report, visit); });
    report.exits = exits_from(json.at("exits"));
    if (json.contains("facts"))
      report.facts = facts_from(json.at("facts"));
    return report;
  });
}

// Only an order to start has a plan, which is large.
std::string to_text(const Order& order) {
  Json json = members_to_json([&](const auto& visit) { visit_order(order, visit); });
  json["kind"] = to_string(order.kind);
  json["exits"] = to_json(order.exits);
  if (order.kind == Order::Kind::start)
    json["plan"] = plan_to_json(order.plan);
  return dump(json);
}

Order order_from_text(const std::string& text) {
  return parse<Order>(text, "order of the coordinator", [](const Json& json) {
    Order order{.kind = kind_of<Order::Kind>(kOrderKinds, json)};
    members_from_json(json, [&](const auto& visit) { visit_order(order, visit); });
    order.exits = exits_from(json.at("exits"));
    if (json.contains("plan"))
      order.plan = plan_from_json(json.at("plan").get<std::string>(), "the job's plan");
    return order;
  });
}

}  // namespace muster
