#include "muster/cli/unknown_flag.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "muster/base/nearest.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kHyphens = "--";

// "max-restart" of "--max-restart=3".
std::string name_of_flag(const std::string& flag) {
  const size_t begin = std::min(flag.find_first_not_of('-'), flag.size());
  return flag.substr(begin, std::min(flag.find('='), flag.size()) - begin);
}

}  // namespace

std::string suggested_flag(const CLI::App& command, const std::string& flag, bool with_hyphens) {
  const std::string written = name_of_flag(flag);
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != written) flags.push_back(name);  // --config in a file of --config
    }
  }
  const std::string_view near = nearest_name(written, {flags.begin(), flags.end()});
  return near.empty() ? "" : cat("; did you mean '", with_hyphens ? kHyphens : "", near, "'?");
}

std::string unknown_flag(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  for (const std::string& word : command->remaining()) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string flag = word.substr(0, word.find('='));
    std::string next = suggested_flag(*command, word, true);
    if (next.empty()) next = cat("; see ", name, " --help");
    return cat("expected a flag of ", name, ", got '", printable(flag), "'", next);
  }
  return "";
}

}  // namespace muster
