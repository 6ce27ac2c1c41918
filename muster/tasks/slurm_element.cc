#include "muster/tasks/slurm_element.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/supervise/child.h"
#include "muster/tasks/task_log.h"

namespace muster {

std::string element_line(const Task& task, const std::vector<std::string>& argv, const std::string& run_dir) {
  const nlohmann::ordered_json json = {{"name", task.name},
                                       {"argv", argv},
                                       {"environment", task.environment},
                                       {"directory", task.directory},
                                       {"run_dir", run_dir}};
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::invalid_argument,
                cat("--submit slurm: expected text in UTF-8, got something else in ", printable(task.name)));
  }
}

SlurmElement read_element(const std::string& path, int index) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno(cat("cannot open ", printable(path)), errno);
  std::string line;
  for (int at = 0; at <= index; ++at) {
    if (!std::getline(file, line)) line.clear();
  }
  SlurmElement element;
  try {
    if (index < 0 || line.empty()) throw Error(ErrorCode::invalid_argument, "none");
    const auto json = nlohmann::json::parse(line);
    json.at("name").get_to(element.name);
    json.at("argv").get_to(element.argv);
    json.at("environment").get_to(element.environment);
    json.at("directory").get_to(element.directory);
    element.run_dir = json.value("run_dir", "");  // one that was submitted by an older muster has none
    if (element.argv.empty()) throw Error(ErrorCode::invalid_argument, "none");
  } catch (const std::exception&) {
    throw Error(ErrorCode::invalid_argument,
                cat("--exec-element: expected element ", index, " in ", printable(path), ", got none"));
  }
  return element;
}

void exec_element(const std::string& path, int index) {
  const SlurmElement element = read_element(path, index);
  Environment environment = own_environment();
  for (const auto& [name, value] : element.environment) environment[name] = value;
  environment["MUSTER_TASK"] = element.name;
  if (!element.run_dir.empty()) {
    environment["MUSTER_RUN_DIR"] = element.run_dir;
    environment["MUSTER_TASK_DIR"] =
        task_folder_of(element.run_dir, element.name, static_cast<size_t>(index));
    make_task_folder(environment["MUSTER_TASK_DIR"]);
  }
  if (!element.directory.empty() && ::chdir(element.directory.c_str()) != 0)
    fail_errno(cat("task ", printable(element.name), ": cannot enter ", printable(element.directory)), errno);
  const std::string program = find_program(element.argv[0], environment["PATH"]);
  std::vector<std::string> settings;
  settings.reserve(environment.size());
  for (const auto& [name, value] : environment) settings.push_back(cat(name, "=", value));
  std::vector<char*> argv;
  std::vector<char*> envp;
  argv.reserve(element.argv.size() + 1);
  envp.reserve(settings.size() + 1);
  // execve takes them as they are and does not write into them.
  for (const std::string& word : element.argv) argv.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& setting : settings) envp.push_back(const_cast<char*>(setting.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  ::execve(program.c_str(), argv.data(), envp.data());
  throw SpawnError(126,
                   cat("cannot execute ", printable(program), ": ", std::generic_category().message(errno)));
}

}  // namespace muster
