// The program begins at the first argument that is neither a flag nor a flag's value. To find it,
// one has to know of each flag whether the next argument is its value.
#include "muster/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "muster/base/contains.h"

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
    return !contains(flag, '=') && takes_value(command, flag);
  // "-n 2" and "-n2" are the same. In "-qn 2", two flags in one word, only the last may take "2".
  for (size_t i = 1; i < flag.size(); ++i) {
    if (takes_value(command, {'-', flag[i]}))
      return i + 1 == flag.size();
  }
  return false;
}

}  // namespace

Strings cut_program(const CLI::App& command, Strings& args) {
  ptrdiff_t at = 0;
  while (at < std::ssize(args)) {
    std::string& arg = args[at];
    if (arg == "--" || arg.size() < 2 || arg[0] != '-')
      break;
    // torchrun spells its flags with underscores too.
    if (arg.starts_with("--"))
      arg = with_hyphens(arg);
    at += value_follows(command, arg) ? 2 : 1;
  }
  at = std::min(at, std::ssize(args));
  const bool has_dashes = at < std::ssize(args) && args[at] == "--";
  const auto end_of_flags = args.begin() + at;
  Strings program(has_dashes ? end_of_flags + 1 : end_of_flags, args.end());
  args.resize(at);
  return program;
}

}  // namespace muster
