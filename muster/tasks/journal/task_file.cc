// Keys that have their default are left out, since there may be a million tasks. What is read was
// written by muster itself: anything unexpected is an error, told with its line.
#include "muster/tasks/journal/task_file.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

namespace {

using FileJson = nlohmann::ordered_json;

constexpr auto kTasksSchema = "muster.task_list/1";

// The needs of every task are whole: they say what the task got, whatever later versions take for a
// default.
FileJson json_of(const TaskNeed& need) {
  return {{"gpus", need.gpus},
          {"memory", need.memory_bytes},
          {"model", need.model},
          {"cpus", need.cpus},
          {"without_gpus", need.without_gpus}};
}

TaskNeed need_of(const FileJson& json) {
  return {.gpus = json.at("gpus"),
          .memory_bytes = json.at("memory"),
          .model = json.at("model"),
          .cpus = json.at("cpus"),
          .without_gpus = json.at("without_gpus")};
}

// A position is left out where its key is not in the spec.
FileJson json_of(const Task& task) {
  FileJson json = {{"name", task.name}, {"argv", task.argv}};
  add_unless_default(json, "env", task.environment);
  add_unless_default(json, "dir", task.directory);
  json["needs"] = mapped(task.needs, [](const TaskNeed& need) { return json_of(need); });
  add_unless_default(json, "on", task.on);
  if (task.ranks != 1)
    json["ranks"] = task.ranks;
  add_unless_default(json, "after", task.after);
  add_unless_default(json, "priority", task.priority);
  add_unless_default(json, "retries", task.retries);
  json["back_off_ms"] = task.back_off.count();
  if (task.time_limit)
    json["time_limit_ms"] = task.time_limit->count();
  add_unless_default(json, "parameters", task.parameters);
  const NeedPlaces& places = task.places;
  for (const auto& [key, at] : {std::pair("at", task.at),
                                std::pair("needs_at", places.needs),
                                std::pair("on_at", places.on),
                                std::pair("ranks_at", places.ranks)}) {
    if (at.line != 0)
      json[key] = {at.line, at.column};
  }
  return json;
}

// Keys that were left out have their defaults.
Task task_of(const FileJson& json) {
  Task task{.name = json.at("name"), .argv = json.at("argv")};
  task.environment = json.value("env", Environment());
  task.directory = json.value("dir", "");
  task.needs = mapped(json.at("needs"), need_of);
  task.on = json.value("on", "");
  task.ranks = json.value("ranks", 1);
  task.after = json.value("after", Strings());
  task.priority = json.value("priority", 0);
  task.retries = json.value("retries", 0);
  task.back_off = milliseconds(json.at("back_off_ms").get<int64_t>());
  if (json.contains("time_limit_ms"))
    task.time_limit = milliseconds(json["time_limit_ms"].get<int64_t>());
  task.parameters = json.value("parameters", StringMap());
  const auto position = [&](const char* key) {
    const auto found = json.find(key);
    return found == json.end() ? SpecPosition() : SpecPosition{found->at(0), found->at(1)};
  };
  task.at = position("at");
  task.places = {
      .needs = position("needs_at"), .on = position("on_at"), .ranks = position("ranks_at")};
  return task;
}

// Texts of a spec may hold any bytes, and those that are no UTF-8 would be changed: they are
// refused. `of`: whose they are, in the words of the user.
std::string line_of(const FileJson& json, const std::string& of) {
  try {
    return json.dump() + "\n";
  } catch (const FileJson::type_error&) {
    throw invalid_argument(printable(of),
                           ": expected texts in UTF-8, got other bytes; correct or rename them");
  }
}

// A setting has the name of its flag, but for two that are paths and no flag's.
std::string user_word_for(const std::string& setting) {
  constexpr std::pair<std::string_view, const char*> kPaths[] = {
      {"folder", "the path of this folder"}, {"spec", "the path of the tasks' file"}};
  return text_or(lookup(kPaths, setting, ""), "--" + setting);
}

}  // namespace

std::string task_file_path(const std::string& run_dir) {
  return run_dir + "/tasks.json";
}

std::string to_text(const TaskFile& file) {
  for (const auto& [setting, value] : file.settings)
    line_of(value, cat(user_word_for(setting), " '", value, "'"));
  std::string text = line_of({{"schema", kTasksSchema}, {"settings", file.settings}}, "settings");
  text += sum_of<std::string>(file.tasks, [&](const Task& task) {
    return line_of(json_of(task), cat("task ", task.name));
  });
  return text;
}

// The first line has the settings, and each further line a task.
TaskFile task_file_of(const std::string& text, const std::string& source) {
  TaskFile file;
  size_t number = 0;
  for (size_t from = 0; from < text.size();) {
    ++number;
    const size_t end = std::min(text.find('\n', from), text.size());
    try {
      const std::string_view line = std::string_view(text).substr(from, end - from);
      check_json_depth(line, "tasks.json");
      const FileJson json = FileJson::parse(line);
      if (number > 1) {
        file.tasks.push_back(task_of(json));
      } else if (json.at("schema") == kTasksSchema) {
        file.settings = json.at("settings").get<StringMap>();
      } else {
        throw invalid_argument("another schema");
      }
    } catch (const std::exception& error) {
      throw invalid_argument("expected a run's own list of tasks, got ",
                             json_words(error.what()),
                             " (",
                             source,
                             ", line ",
                             number,
                             "); begin anew with another --run-dir");
    }
    from = end + 1;
  }
  return file;
}

}  // namespace muster
