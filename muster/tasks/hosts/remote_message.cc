// Every kind of message has a pair of functions, which stand side by side: wire_of makes its JSON,
// KIND_from reads it and checks it. JsonObject refuses keys that nobody has asked for.
#include "muster/tasks/hosts/remote_message.h"

#include <signal.h>

#include <cstdint>
#include <limits>
#include <map>

#include "muster/base/byte_text.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/inventory_json.h"
#include "muster/device/strict_json.h"

namespace muster {

namespace {

using WireJson = nlohmann::ordered_json;

// The key that says which kind a message is. It stands first, so that a line can be told from what
// a login prints.
constexpr auto kKindKey = "muster";
constexpr auto kWhat = "a line of the connection";
// Bounds of numbers from the other side; the grace period is at most a week.
constexpr int kMostRanksOfTask = 1'000'000;
constexpr int64_t kLongestGrace = int64_t{7} * 24 * 3'600 * 1'000;

// Arguments, variables and output are bytes and perhaps no UTF-8, which JSON must be.
WireJson wire_texts(const Strings& texts) {
  return mapped(texts, text_of_bytes);
}

// The bytes that wire_texts has written.
Strings texts_from(JsonObject& json, const char* key) {
  Strings texts = json.texts_or_none(key);
  for (std::string& text : texts)
    text = bytes_of_text(text, kWhat);
  return texts;
}

// Variables go as texts NAME=value.
WireJson wire_environment(const Environment& environment) {
  return wire_texts(exec_entries(environment));
}

// Each entry must have a name, and no NUL, at which the kernel would cut it.
Environment environment_from(JsonObject& json, const char* key) {
  Environment environment;
  for (const std::string& entry : texts_from(json, key)) {
    const size_t equals = entry.find('=');
    const bool has_name = equals != npos && equals > 0;
    if (!has_name || contains(entry, '\0'))
      json.fail(
          key, "variables as in NAME=value", in_quotes(printable(entry.substr(0, kMaxShown))));
    environment[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return environment;
}

// A text that may hold any bytes; empty where it is left out.
std::string bytes_at(JsonObject& json, const char* key) {
  return bytes_of_text(json.text_or(key, ""), kWhat);
}

// A whole number from 0 to `most`.
int number_at(JsonObject& json, const char* key, int64_t most = std::numeric_limits<int>::max()) {
  return static_cast<int>(json.integer(key, 0, most));
}

WireJson wire_of(const RemoteAlive& /*alive*/) {
  return {{kKindKey, "alive"}};
}

WireJson wire_of(const RemoteHello& hello) {
  return {{kKindKey, "hello"},
          {"version", hello.version},
          {"name", text_of_bytes(hello.name)},
          {"folder", text_of_bytes(hello.folder)},
          {"environment", wire_environment(hello.environment)},
          {"gpus", hello.gpus},
          {"links", hello.links},
          {"cpu_topology", hello.cpu_topology},
          {"memory", hello.memory},
          {"held", hello.held},
          {"run_id", text_of_bytes(hello.run_id)}};
}

// A question that an older run does not ask keeps its default.
RemoteMessage hello_from(JsonObject& json) {
  RemoteHello hello;
  hello.version = json.text("version");
  hello.name = bytes_at(json, "name");
  hello.folder = bytes_at(json, "folder");
  hello.environment = environment_from(json, "environment");
  hello.gpus = json.boolean_or("gpus", true);
  hello.links = json.boolean_or("links", false);
  hello.cpu_topology = json.boolean_or("cpu_topology", false);
  hello.memory = json.boolean_or("memory", false);
  hello.held = json.boolean_or("held", false);
  hello.run_id = bytes_at(json, "run_id");
  json.ignore("topology_or_nothing");  // a run of 0.2.0 says it, and is then told of the versions
  return hello;
}

WireJson wire_of(const RemoteBegin& begin) {
  return {{kKindKey, "begin"},
          {"run_id", text_of_bytes(begin.run_id)},
          {"run_dir", text_of_bytes(begin.run_dir)},
          {"mark", text_of_bytes(begin.mark)},
          {"earlier", wire_texts(begin.earlier)},
          {"grace", begin.grace.count()},
          {"lease", begin.lease},
          {"visibility", to_string(begin.visibility)}};
}

// The run's folder is made on the host, whose working folder may be another one, so its path must
// be absolute.
RemoteMessage begin_from(JsonObject& json) {
  RemoteBegin begin;
  begin.run_id = bytes_at(json, "run_id");
  begin.run_dir = bytes_at(json, "run_dir");
  begin.mark = bytes_at(json, "mark");
  begin.earlier = texts_from(json, "earlier");
  begin.grace = milliseconds(json.integer("grace", 0, kLongestGrace));
  begin.lease = json.boolean_or("lease", true);
  begin.visibility = parse_visibility(json.text_or("visibility", "job"));
  // Every process that is marked so is ended: an empty mark would be anybody's.
  if (begin.mark.empty() || contains(begin.earlier, ""))
    json.fail("mark", "marks of this run and of earlier ones", "an empty one");
  if (!begin.run_dir.starts_with('/'))
    json.fail("run_dir", "an absolute folder", in_quotes(printable(begin.run_dir)));
  return begin;
}

// The task goes with what the host needs to run it; all else about it stays with the run.
WireJson wire_of(const RemoteStart& start) {
  return {{kKindKey, "start"},
          {"id", start.id},
          {"name", text_of_bytes(start.task.name)},
          {"argv", wire_texts(start.task.argv)},
          {"environment", wire_environment(start.task.environment)},
          {"directory", text_of_bytes(start.task.directory)},
          {"ranks", start.task.ranks},
          {"attempt", start.attempt},
          {"devices", wire_texts(start.gpus)},
          {"units", start.units},
          {"memory_bytes", start.memory_bytes},
          {"cpus", start.cpus},
          {"bound", to_cpu_list(start.bound)},
          {"log", text_of_bytes(start.log)}};
}

// A task without a command, or a log by another name, would fail later and less clearly.
RemoteMessage start_from(JsonObject& json) {
  RemoteStart start;
  start.id = number_at(json, "id");
  start.task.name = bytes_at(json, "name");
  start.task.argv = texts_from(json, "argv");
  start.task.environment = environment_from(json, "environment");
  start.task.directory = bytes_at(json, "directory");
  start.task.ranks = number_at(json, "ranks", kMostRanksOfTask);
  start.attempt = number_at(json, "attempt");
  start.gpus = texts_from(json, "devices");
  start.units = number_at(json, "units", kWholeGpu);
  start.memory_bytes = json.size_or("memory_bytes", 0);
  start.cpus = number_at(json, "cpus", kMostRanksOfTask);
  if (const std::string bound = json.text_or("bound", ""); !bound.empty())
    start.bound = parse_cpu_list(bound);
  start.log = bytes_at(json, "log");
  if (start.task.argv.empty())
    json.fail("argv", "a command", "none");
  if (!start.log.ends_with(".log"))
    json.fail("log", "a path that ends in .log", printable(start.log));
  return start;
}

WireJson wire_of(const RemoteEnd& end) {
  return {{kKindKey, "end"}, {"id", end.id}, {"grace", end.grace.count()}};
}

RemoteMessage end_from(JsonObject& json) {
  const int id = number_at(json, "id");
  return RemoteEnd{.id = id, .grace = milliseconds(json.integer("grace", 0, kLongestGrace))};
}

WireJson wire_of(const RemoteSignal& signal) {
  return {{kKindKey, "signal"}, {"signal", signal.signal}};
}

// Only signals that a run passes on: no other ends tasks by this message.
RemoteMessage signal_from(JsonObject& json) {
  const int signal = number_at(json, "signal", SIGRTMAX);
  if (!is_one_of(signal, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP))
    json.fail("signal", "one that is passed on to tasks", cat(signal));
  return RemoteSignal{.signal = signal};
}

// What other jobs hold is a message of its own, and a part of the inventory.
WireJson held_fields(const RemoteHeld& held) {
  return {{"gpu", text_of_bytes(held.gpu)}, {"units", held.units}, {"by", text_of_bytes(held.by)}};
}

RemoteHeld held_of(JsonObject& json) {
  RemoteHeld held{.gpu = bytes_at(json, "gpu")};
  held.units = number_at(json, "units");
  held.by = bytes_at(json, "by");
  return held;
}

WireJson wire_of(const RemoteInventory& host) {
  const auto held = mapped(host.held, held_fields);
  return {{kKindKey, "host"},
          {"version", host.version},
          {"inventory", inventory_to_json(host.inventory)},
          {"held", held}};
}

// The inventory is a text within the text, as inventory_json.h writes it.
RemoteMessage inventory_from(JsonObject& json) {
  RemoteInventory host{.version = json.text("version"),
                       .inventory = inventory_from_json(json.text("inventory"), "of a host")};
  host.inventory.simulated = false;  // these are there
  host.inventory.source = "these machines";
  if (host.inventory.hosts.size() != 1)
    json.fail("inventory", "one host", cat(host.inventory.hosts.size(), " hosts"));
  for (JsonObject& each : json.objects_or_none("held")) {
    host.held.push_back(held_of(each));
    each.finish();
  }
  return host;
}

WireJson wire_of(const RemoteHeld& held) {
  WireJson json = held_fields(held);
  json[kKindKey] = "held";
  return json;
}

RemoteMessage held_from(JsonObject& json) {
  return held_of(json);
}

WireJson wire_of(const RemoteMemory& memory) {
  return {{kKindKey, "memory"}, {"gpu", text_of_bytes(memory.gpu)}, {"bytes", memory.bytes}};
}

RemoteMessage memory_from(JsonObject& json) {
  RemoteMemory memory{.gpu = bytes_at(json, "gpu")};
  memory.bytes = json.size_or("bytes", 0);
  return memory;
}

WireJson wire_of(const RemoteOutput& output) {
  return {{kKindKey, "output"}, {"id", output.id}, {"bytes", text_of_bytes(output.bytes)}};
}

RemoteMessage output_from(JsonObject& json) {
  const int id = number_at(json, "id");
  return RemoteOutput{.id = id, .bytes = bytes_of_text(json.text("bytes"), kWhat)};
}

// A lost host tells no end: of the kinds two have a flag, and no flag means an end like any other.
WireJson wire_of(const RemoteEnded& ended) {
  const TaskEnd& end = ended.end;
  const ChildExit& exit = end.exit.exit;
  return {{kKindKey, "ended"},
          {"id", exit.id},
          {"refused", end.kind == TaskEnd::Kind::refused},
          {"starved", end.kind == TaskEnd::Kind::starved},
          {"exit_code", exit.exit_code},
          {"signal", exit.signal},
          {"sent_signal", exit.sent_signal},
          {"core_dumped", exit.core_dumped},
          {"left_ended", wire_texts(end.exit.ended)},
          {"killed", wire_texts(end.exit.killed)},
          {"survivors", wire_texts(end.exit.survivors)},
          {"unclear", wire_texts(end.exit.unclear)},
          {"why_not", text_of_bytes(end.why_not)},
          {"out_of_memory", end.out_of_memory}};
}

// Numbers are bounded by what the kernel can tell.
RemoteMessage ended_from(JsonObject& json) {
  RemoteEnded ended;
  TaskEnd& end = ended.end;
  ChildExit& exit = end.exit.exit;
  exit.id = number_at(json, "id");
  if (json.boolean_or("refused", false))
    end.kind = TaskEnd::Kind::refused;
  if (json.boolean_or("starved", false))
    end.kind = TaskEnd::Kind::starved;
  exit.exit_code = number_at(json, "exit_code", 255);
  exit.signal = number_at(json, "signal", SIGRTMAX);
  exit.sent_signal = number_at(json, "sent_signal", SIGRTMAX);
  exit.core_dumped = json.boolean_or("core_dumped", false);
  end.exit.ended = texts_from(json, "left_ended");
  end.exit.killed = texts_from(json, "killed");
  end.exit.survivors = texts_from(json, "survivors");
  end.exit.unclear = texts_from(json, "unclear");
  end.why_not = bytes_at(json, "why_not");
  end.out_of_memory = json.boolean_or("out_of_memory", false);
  return ended;
}

WireJson wire_of(const RemoteCannot& cannot) {
  return {{kKindKey, "cannot"}, {"why", text_of_bytes(cannot.why)}, {"stopped", cannot.stopped}};
}

RemoteMessage cannot_from(JsonObject& json) {
  RemoteCannot cannot{.why = bytes_at(json, "why")};
  cannot.stopped = json.boolean_or("stopped", false);
  return cannot;
}

RemoteMessage alive_from(JsonObject& /*json*/) {
  return RemoteAlive{};
}

using Reader = RemoteMessage (*)(JsonObject& json);

// Every kind by the name that it has on the wire.
const std::map<std::string, Reader>& readers_of_kinds() {
  static const std::map<std::string, Reader> readers = {{"alive", alive_from},
                                                        {"hello", hello_from},
                                                        {"begin", begin_from},
                                                        {"start", start_from},
                                                        {"end", end_from},
                                                        {"signal", signal_from},
                                                        {"host", inventory_from},
                                                        {"held", held_from},
                                                        {"memory", memory_from},
                                                        {"output", output_from},
                                                        {"ended", ended_from},
                                                        {"cannot", cannot_from}};
  return readers;
}

}  // namespace

std::string to_line(const RemoteMessage& message) {
  const WireJson json = std::visit([](const auto& it) { return wire_of(it); }, message);
  return json_text(json) + "\n";
}

RemoteMessage remote_message_from(const std::string& line) {
  const auto document = parse_strict_json(line, kWhat);
  JsonObject json(document, kWhat, "");
  const std::string kind = json.text(kKindKey);
  const auto reader = readers_of_kinds().find(kind);
  if (reader == readers_of_kinds().end())
    json.fail(kKindKey, "a kind of message", in_quotes(printable(kind.substr(0, kMaxShown))));
  RemoteMessage message = reader->second(json);
  json.finish();
  return message;
}

}  // namespace muster
