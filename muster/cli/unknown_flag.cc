// CLI11 leaves unknown arguments over and says only that there are some. The command that was named
// knows the flags that may have been meant.
#include "muster/cli/unknown_flag.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "muster/base/mapped.h"
#include "muster/base/nearest.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

namespace {

// Returns "max-restart" for "--max-restart=3".
std::string name_of_flag(const std::string& flag) {
  const size_t begin = std::min(flag.find_first_not_of('-'), flag.size());
  return flag.substr(begin, std::min(flag.find('='), flag.size()) - begin);
}

bool is_flag(const std::string& word) {
  return word.size() >= 2 && word[0] == '-';
}

// A command, and how it is called with all of its parents.
struct NamedCommand {
  const CLI::App* command;
  std::string name;  // "muster checkpoint"
};

// What to do next: what the words were probably meant to be, or else to read the help.
std::string or_see_help(const std::string& suggestion, const NamedCommand& named) {
  return text_or(suggestion, cat("; see ", named.name, " --help"));
}

// Returns the innermost command that the command line names.
NamedCommand named_command(const CLI::App& app) {
  NamedCommand named{.command = &app, .name = app.get_name()};
  while (!named.command->get_subcommands().empty()) {
    named.command = named.command->get_subcommands().front();
    named.name += " " + named.command->get_name();
  }
  return named;
}

}  // namespace

// Only long names are compared: a single letter is always near another.
std::string suggested_flag(const CLI::App& command, const std::string& flag, bool with_hyphens) {
  const auto written = name_of_flag(flag);
  Strings flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) {
      // A flag may be known and still be refused: --config in a file of --config.
      if (name != written)
        flags.push_back(name);
    }
  }
  const std::string_view near = nearest_name(written, {flags.begin(), flags.end()});
  if (near.empty())
    return "";
  return cat("; did you mean '", with_hyphens ? "--" : "", near, "'?");
}

std::string unknown_flag(const CLI::App& app) {
  const NamedCommand named = named_command(app);
  for (const auto& word : named.command->remaining()) {
    if (!is_flag(word))
      continue;
    const auto flag = word.substr(0, word.find('='));
    const auto next = or_see_help(suggested_flag(*named.command, word, true), named);
    return cat("expected a flag of ", named.name, ", got '", printable(flag), "'", next);
  }
  return "";
}

// The names are those that the command has, in their order.
std::string unknown_subcommand(const CLI::App& app) {
  const NamedCommand named = named_command(app);
  if (named.command == &app || named.command->get_require_subcommand_min() == 0)
    return "";
  auto names = mapped(named.command->get_subcommands({}), &CLI::App::get_name);
  const Strings words = named.command->remaining();
  const auto word = std::ranges::find_if_not(words, is_flag);
  std::string got = "none";
  std::string suggestion;
  if (word != words.end()) {
    got = in_quotes(printable(*word));
    suggestion = did_you_mean(*word, {names.begin(), names.end()});
  }
  const std::string last = names.back();
  names.pop_back();
  return cat(
      "expected ", join(names, ", "), " or ", last, ", got ", got, or_see_help(suggestion, named));
}

}  // namespace muster
