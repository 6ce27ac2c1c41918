// The members of every kind of message are listed once, in its `members`: a WireWriter makes its
// JSON of them, a WireReader reads and checks them. What else must hold of a kind its `check` says.
// JsonObject refuses keys that nobody has asked for.
#include "muster/tasks/hosts/remote_message.h"

#include <signal.h>

#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "muster/base/byte_text.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
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

// The message, to be written, or to be read into.
template <class T, class Message>
concept Of = std::same_as<std::remove_const_t<T>, Message>;

void members(Of<RemoteAlive> auto& /*alive*/, auto& /*on*/) {}

void members(Of<RemoteHello> auto& hello, auto& on) {
  on.required("version", hello.version);
  on("name", hello.name);
  on("folder", hello.folder);
  on("environment", hello.environment);
  on("gpus", hello.gpus);
  on("links", hello.links);
  on("cpu_topology", hello.cpu_topology);
  on("memory", hello.memory);
  on("held", hello.held);
  on("run_id", hello.run_id);
}

void members(Of<RemoteBegin> auto& begin, auto& on) {
  on("run_id", begin.run_id);
  on("run_dir", begin.run_dir);
  on("mark", begin.mark);
  on("earlier", begin.earlier);
  on("grace", begin.grace);
  on("lease", begin.lease);
  on("visibility", begin.visibility);
}

// The task goes with what the host needs to run it; all else about it stays with the run.
void members(Of<RemoteStart> auto& start, auto& on) {
  auto& task = start.task;
  on("id", start.id);
  on("name", task.name);
  on("argv", task.argv);
  on("environment", task.environment);
  on("directory", task.directory);
  on("ranks", task.ranks, kMostRanksOfTask);
  on("attempt", start.attempt);
  on("devices", start.gpus);
  on("units", start.units, kWholeGpu);
  on("memory_bytes", start.memory_bytes);
  on("cpus", start.cpus, kMostRanksOfTask);
  on("bound", start.bound);
  on("log", start.log);
}

void members(Of<RemoteEnd> auto& end, auto& on) {
  on("id", end.id);
  on("grace", end.grace);
}

void members(Of<RemoteSignal> auto& signal, auto& on) {
  on("signal", signal.signal, SIGRTMAX);
}

// What other jobs hold is a message of its own, and a part of the inventory.
void members(Of<RemoteHeld> auto& held, auto& on) {
  on("gpu", held.gpu);
  on("units", held.units);
  on("by", held.by);
}

void members(Of<RemoteInventory> auto& host, auto& on) {
  on.required("version", host.version);
  on("inventory", host.inventory);
  on("held", host.held);
}

void members(Of<RemoteMemory> auto& memory, auto& on) {
  on("gpu", memory.gpu);
  on("bytes", memory.bytes);
}

void members(Of<RemoteOutput> auto& output, auto& on) {
  on("id", output.id);
  on.required("bytes", output.bytes);
}

// A lost host tells no end: of the kinds two have a flag, and no flag means an end like any other.
// Numbers are bounded by what the kernel can tell.
void members(Of<RemoteEnded> auto& ended, auto& on) {
  auto& end = ended.end;
  auto& exit = end.exit.exit;
  on("id", exit.id);
  on("refused", end.kind, TaskEnd::Kind::refused);
  on("starved", end.kind, TaskEnd::Kind::starved);
  on("exit_code", exit.exit_code, 255);
  on("signal", exit.signal, SIGRTMAX);
  on("sent_signal", exit.sent_signal, SIGRTMAX);
  on("core_dumped", exit.core_dumped);
  on("left_ended", end.exit.ended);
  on("killed", end.exit.killed);
  on("survivors", end.exit.survivors);
  on("unclear", end.exit.unclear);
  on("why_not", end.why_not);
  on("out_of_memory", end.out_of_memory);
}

void members(Of<RemoteCannot> auto& cannot, auto& on) {
  on("why", cannot.why);
  on("stopped", cannot.stopped);
}

// Arguments, variables and output are bytes and perhaps no UTF-8, which JSON must be.
struct WireWriter {
  WireJson json{};

  void operator()(const char* key, const auto& value, int /*most*/ = 0) { json[key] = value; }
  void operator()(const char* key, const std::string& text) { json[key] = text_of_bytes(text); }
  void operator()(const char* key, const Strings& texts) {
    json[key] = mapped(texts, text_of_bytes);
  }
  // Variables go as texts NAME=value.
  void operator()(const char* key, const Environment& environment) {
    (*this)(key, exec_entries(environment));
  }
  void operator()(const char* key, const Ints& cpus) { json[key] = to_cpu_list(cpus); }
  void operator()(const char* key, milliseconds time) { json[key] = time.count(); }
  void operator()(const char* key, Visibility visibility) { json[key] = to_string(visibility); }
  void operator()(const char* key, TaskEnd::Kind kind, TaskEnd::Kind told) {
    json[key] = kind == told;
  }
  // The inventory is a text within the text, as inventory_json.h writes it.
  void operator()(const char* key, const Inventory& inventory) {
    json[key] = inventory_to_json(inventory);
  }
  void operator()(const char* key, const RemoteHoldings& held) {
    json[key] = mapped(held, [](const RemoteHeld& each) {
      WireWriter writer;
      members(each, writer);
      return writer.json;
    });
  }
  void required(const char* key, const std::string& text) { (*this)(key, text); }
};

// A text or a list that is left out is empty. A flag that an older run does not know keeps its
// default.
struct WireReader {
  JsonObject& json;

  void operator()(const char* key, std::string& text) {
    text = bytes_of_text(json.text_or(key, ""), kWhat);
  }
  void operator()(const char* key, Strings& texts) {
    texts = json.texts_or_none(key);
    for (std::string& text : texts)
      text = bytes_of_text(text, kWhat);
  }
  // Each entry must have a name, and no NUL, at which the kernel would cut it.
  void operator()(const char* key, Environment& environment) {
    Strings entries;
    (*this)(key, entries);
    for (const auto& entry : entries) {
      const size_t equals = entry.find('=');
      const bool has_name = equals != npos && equals > 0;
      if (!has_name || contains(entry, '\0'))
        json.fail(
            key, "variables as in NAME=value", in_quotes(printable(entry.substr(0, kMaxShown))));
      environment[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  void operator()(const char* key, bool& flag) { flag = json.boolean_or(key, flag); }
  void operator()(const char* key, int& number, int most = std::numeric_limits<int>::max()) {
    number = json.small_integer(key, 0, most);
  }
  void operator()(const char* key, uint64_t& size) { size = json.size_or(key, 0); }
  void operator()(const char* key, Ints& cpus) {
    if (const auto list = json.text_or(key, ""); !list.empty())
      cpus = parse_cpu_list(list);
  }
  void operator()(const char* key, milliseconds& time) {
    time = milliseconds(json.integer(key, 0, kLongestGrace));
  }
  void operator()(const char* key, Visibility& visibility) {
    visibility = parse_visibility(json.text_or(key, "job"));
  }
  void operator()(const char* key, TaskEnd::Kind& kind, TaskEnd::Kind told) {
    if (json.boolean_or(key, false))
      kind = told;
  }
  void operator()(const char* key, Inventory& inventory) {
    inventory = inventory_from_json(json.text(key), "of a host");
    inventory.simulated = false;  // these are there
    inventory.source = "these machines";
    if (inventory.hosts.size() != 1)
      json.fail(key, "one host", cat(inventory.hosts.size(), " hosts"));
  }
  void operator()(const char* key, RemoteHoldings& held) {
    for (JsonObject& each : json.objects_or_none(key)) {
      WireReader reader{each};
      members(held.emplace_back(), reader);
      each.finish();
    }
  }
  void required(const char* key, std::string& text) { text = bytes_of_text(json.text(key), kWhat); }
};

void check(const auto& /*message*/, JsonObject& /*json*/) {}

// A run of 0.2.0 says it, and is then told of the versions.
void check(const RemoteHello& /*hello*/, JsonObject& json) {
  json.ignore("topology_or_nothing");
}

// The run's folder is made on the host, whose working folder may be another one, so its path must
// be absolute.
void check(const RemoteBegin& begin, JsonObject& json) {
  // Every process that is marked so is ended: an empty mark would be anybody's.
  if (begin.mark.empty() || contains(begin.earlier, ""))
    json.fail("mark", "marks of this run and of earlier ones", "an empty one");
  if (!begin.run_dir.starts_with('/'))
    json.fail("run_dir", "an absolute folder", in_quotes(printable(begin.run_dir)));
}

// A task without a command, or a log by another name, would fail later and less clearly.
void check(const RemoteStart& start, JsonObject& json) {
  if (start.task.argv.empty())
    json.fail("argv", "a command", "none");
  if (!start.log.ends_with(".log"))
    json.fail("log", "a path that ends in .log", printable(start.log));
}

// Only signals that a run passes on: no other ends tasks by this message.
void check(const RemoteSignal& signal, JsonObject& json) {
  if (!is_one_of(signal.signal, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP))
    json.fail("signal", "one that is passed on to tasks", cat(signal.signal));
}

// An empty message of every kind, by the name that it has on the wire.
using WireKind = std::pair<const char*, RemoteMessage>;
const std::vector<WireKind>& kinds() {
  static const std::vector<WireKind> kinds = {{"alive", RemoteAlive{}},
                                              {"hello", RemoteHello{}},
                                              {"begin", RemoteBegin{}},
                                              {"start", RemoteStart{}},
                                              {"end", RemoteEnd{}},
                                              {"signal", RemoteSignal{}},
                                              {"host", RemoteInventory{}},
                                              {"held", RemoteHeld{}},
                                              {"memory", RemoteMemory{}},
                                              {"output", RemoteOutput{}},
                                              {"ended", RemoteEnded{}},
                                              {"cannot", RemoteCannot{}}};
  return kinds;
}

}  // namespace

std::string to_line(const RemoteMessage& message) {
  const auto is_of_it = [&](const WireKind& kind) {
    return kind.second.index() == message.index();
  };
  WireWriter writer;
  writer.json[kKindKey] = element_where(kinds(), is_of_it)->first;
  std::visit([&](const auto& it) { members(it, writer); }, message);
  return json_text(writer.json) + "\n";
}

RemoteMessage remote_message_from(const std::string& line) {
  const auto document = parse_strict_json(line, kWhat);
  JsonObject json(document, kWhat, "");
  const std::string name = json.text(kKindKey);
  const WireKind* const kind = element_with(kinds(), name, &WireKind::first);
  if (kind == nullptr)
    json.fail(kKindKey, "a kind of message", in_quotes(printable(name.substr(0, kMaxShown))));
  RemoteMessage message = kind->second;
  WireReader reader{json};
  std::visit(
      [&](auto& it) {
        members(it, reader);
        check(it, json);
      },
      message);
  json.finish();
  return message;
}

}  // namespace muster
