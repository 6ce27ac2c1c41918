#include "muster/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace muster {

namespace {

// "--nproc_per_node=2_000" → "--nproc-per-node=2_000".
std::string with_hyphens(std::string flag) {
  const auto end = std::find(flag.begin(), flag.end(), '=');
  std::replace(flag.begin(), end, '_', '-');
  return flag;
}

// A flag whose value may be left out takes it as --flag=value only.
bool takes_value(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->get_items_expected_min() > 0;
}

// Whether the argument after `flag` is its value.
bool value_follows(const CLI::App& command, const std::string& flag) {
  if (flag.starts_with("--"))
    return flag.find('=') == std::string::npos && takes_value(command, flag);
  // "-n 2" and "-n2"; "-qn 2": flags in one word, of which only the last may take the next one.
  for (size_t i = 1; i < flag.size(); ++i) {
    if (takes_value(command, {'-', flag[i]}))
      return i + 1 == flag.size();
  }
  return false;
}

}  // namespace

std::vector<std::string> cut_program(const CLI::App& command, std::vector<std::string>& args) {
  size_t at = 0;
  while (at < args.size()) {
    std::string& arg = args[at];
    if (arg == "--" || arg.size() < 2 || arg[0] != '-')
      break;
    if (arg.starts_with("--"))
      arg = with_hyphens(arg);
    at += value_follows(command, arg) ? 2 : 1;
  }
  at = std::min(at, args.size());
  const size_t program = at + (at < args.size() && args[at] == "--" ? 1 : 0);
  std::vector<std::string> result(args.begin() + static_cast<ptrdiff_t>(program), args.end());
  args.resize(at);
  return result;
}

}  // namespace muster
