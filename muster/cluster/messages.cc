// Reports and orders as JSON, compressed where that saves something. All hosts run the same version
// of muster, so every member must be there; only facts and plans, which few messages have, may be
// missing.
#include "muster/cluster/messages.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "muster/base/compress.h"
#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/inventory_json.h"
#include "muster/launch/json_members.h"
#include "muster/launch/rank_exit_json.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_part.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kAlive = "alive/";

// The names are in the order of the kinds.
constexpr std::array<const char*, 7> kReportKinds = {
    "join", "failing", "ended", "leave", "lost", "stop", "signal"};
constexpr std::array<const char*, 5> kOrderKinds = {"start", "stop", "finish", "refuse", "signal"};

// The names stand at their kinds' places.
template <class Kind, size_t N>
const char* name_of(const std::array<const char*, N>& names, Kind kind) {
  return names.at(static_cast<size_t>(kind));
}

// The kind of a message, of which the name stands at its place among `names`. Throws:
// invalid_argument; nlohmann's exceptions.
template <class Kind, size_t N>
Kind kind_of(const std::array<const char*, N>& names, const Json& json) {
  const auto name = json.at("kind").get<std::string>();
  if (const auto place = index_with(names, name))
    return static_cast<Kind>(*place);
  throw invalid_argument("message: expected a known kind, got '", printable(name), "'");
}

// The members of a host's facts that are written as they are. These lists serve both
// directions.
constexpr auto kFactsMembers = [](auto& facts, const auto& visit) {
  visit("id", facts.id);
  visit("min_hosts", facts.min_hosts);
  visit("max_hosts", facts.max_hosts);
  visit("node_rank", facts.node_rank);
  visit("nproc", facts.nproc);
  visit("address", facts.address);
  visit("master_port", facts.master_port);
  visit("store", facts.store);
  visit("muster_version", facts.muster_version);
};

constexpr auto kReportMembers = [](auto& report, const auto& visit) {
  visit("from", report.from);
  visit("number", report.number);
  visit("round", report.round);
  visit("stopped_by", report.stopped_by);
  visit("error", report.error);
  visit("exit_code", report.exit_code);
  visit("signal", report.signal);
};

constexpr auto kOrderMembers = [](auto& order, const auto& visit) {
  visit("round", order.round);
  visit("num_hosts", order.num_hosts);
  visit("run_folder", order.run_folder);
  visit("launch", order.launch);
  visit("is_asked", order.is_asked);
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
  visit("signal", order.signal);
};

constexpr auto kStoredMembers = [](auto& stored, const auto& visit) {
  visit("place", stored.place);
  visit("buckets", stored.buckets);
  visit("digest", stored.digest);
  visit("pieces", stored.pieces);
};

// Whether a reader gives the member this value where it is missing. A GPU with instances then is in
// MIG mode.
bool is_default(const Json& object, const std::string& key) {
  const Json& value = object.at(key);
  const bool is_empty = value.is_array() && value.empty();
  const bool is_false =
      value == false && (key != "mig_enabled" || object.value("mig", Json()).empty());
  const bool is_usual =
      (key == "health" && value == kHealthy) || (key == "vendor" && value == "nvidia");
  return value.is_null() || is_empty || is_false || is_usual;
}

// Removes such members at any depth.
Json without_defaults(const Json& json) {
  if (!json.is_structured())
    return json;
  Json kept = json.is_object() ? Json::object() : Json::array();
  for (const auto& [key, value] : json.items()) {
    if (json.is_array()) {
      kept.push_back(without_defaults(value));
    } else if (!is_default(json, key)) {
      kept[key] = without_defaults(value);
    }
  }
  return kept;
}

Json to_json(const HostFacts& facts) {
  const VisibilityMasks& masks = facts.masks;
  Json json = members_to_json(facts, kFactsMembers);
  json["masks"] =
      Json::array({member_json(masks.cuda), member_json(masks.rocr), member_json(masks.hip)});
  return json;
}

// The machine as a file for --inventory has it, in one line.
std::string machine_line(const Host& machine) {
  const auto devices = inventory_to_json({.source = "a host", .hosts = {machine}});
  return without_defaults(Json::parse(devices)).dump();
}

// Throws: nlohmann's exceptions; as inventory_from_json.
HostFacts facts_from(const Json& json, const std::string& machine) {
  if (machine.empty()) {
    throw invalid_argument(
        "report of a host: expected its machine in a second line, got none; start one "
        "version of muster on every host");
  }
  HostFacts facts;
  members_from_json(json, facts, kFactsMembers);
  const Json& masks = json.at("masks");
  take_member(masks.at(0), facts.masks.cuda);
  take_member(masks.at(1), facts.masks.rocr);
  take_member(masks.at(2), facts.masks.hip);
  facts.host =
      std::move(inventory_from_json(machine, cat("what host ", facts.id, " told")).hosts.at(0));
  return facts;
}

// The ends keep their order: the cause stands first.
Json to_json(const RankExits& exits) {
  return mapped(exits, [](const RankExit& exit) { return to_json(exit); });
}

// Throws: invalid_argument, nlohmann's exceptions.
RankExits exits_from(const Json& json) {
  return mapped(json, rank_exit_from_json);
}

// Returns what `read` makes of the message's first line, parsed, and of its second; that is empty
// where there is none. Throws: invalid_argument that begins with `what`.
template <class Value>
Value parse(const std::string& message,
            const char* what,
            Value (*read)(const Json& json, const std::string& second_line)) {
  try {
    const auto text = unpacked(message);
    const size_t end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    check_json_depth(line, what);
    return read(Json::parse(line), text.substr(std::min(end + 1, text.size())));
  } catch (const nlohmann::json::exception& error) {
    throw invalid_argument(
        what, ": expected JSON of this version of muster, got ", json_words(error.what()));
  }
}

}  // namespace

std::string sign_of_life_key(const std::string& id) {
  return cat(kAlive, id);
}

std::optional<std::string> host_of_sign_of_life(const std::string& key) {
  if (!key.starts_with(kAlive))
    return std::nullopt;
  return key.substr(kAlive.size());
}

const char* to_string(Report::Kind kind) {
  return name_of(kReportKinds, kind);
}

const char* to_string(Order::Kind kind) {
  return name_of(kOrderKinds, kind);
}

// A host that joins tells its facts, the machine in a line of its own; other reports have none.
std::string to_text(const Report& report) {
  Json json = members_to_json(report, kReportMembers);
  json["kind"] = to_string(report.kind);
  json["exits"] = to_json(report.exits);
  if (!report.facts)
    return packed(json_text(json));
  json["facts"] = to_json(*report.facts);
  return packed(cat(json_text(json), "\n", machine_line(report.facts->host)));
}

Report report_from_text(const std::string& text) {
  return parse<Report>(text, "report of a host", [](const Json& json, const std::string& machine) {
    Report report{.kind = kind_of<Report::Kind>(kReportKinds, json)};
    members_from_json(json, report, kReportMembers);
    report.exits = exits_from(json.at("exits"));
    if (json.contains("facts"))
      report.facts = facts_from(json.at("facts"), machine);
    return report;
  });
}

// An order to start has a plan and a place instead of its hosts.
std::string to_text(const Order& order, const StoredPlan& stored) {
  Json json = members_to_json(order, kOrderMembers);
  json["kind"] = to_string(order.kind);
  json["exits"] = to_json(order.exits);
  if (order.kind == Order::Kind::start) {
    json["plan"] = plan_to_json(part_without_ranks(order.plan));
    json["stored"] = members_to_json(stored, kStoredMembers);
  } else {
    json["hosts"] = order.hosts;
  }
  return packed(json_text(json));
}

Order order_from_text(const std::string& text) {
  return parse<Order>(text, "order of the coordinator", [](const Json& json, const std::string&) {
    Order order{.kind = kind_of<Order::Kind>(kOrderKinds, json)};
    members_from_json(json, order, kOrderMembers);
    order.exits = exits_from(json.at("exits"));
    if (order.kind != Order::Kind::start) {
      take_member(json.at("hosts"), order.hosts);
      return order;
    }
    order.plan = plan_from_json(json.at("plan").get<std::string>(), "the job's plan");
    members_from_json(json.at("stored"), order.stored, kStoredMembers);
    return order;
  });
}

}  // namespace muster
