// Everything is read off CLI11's commands and options. A group of flags under a title is a command
// without a name to CLI11, and part of its parent here. What has no group at all is hidden.
#include "muster/cli/command_help.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace muster {

namespace {

// An argument by place has one name, and flags may have a short and a long one.
FlagHelp describe_flag(const CLI::Option& option) {
  FlagHelp flag{.text = option.get_description(), .variable = option.get_envname()};
  for (const auto& name : option.get_snames())
    flag.names.push_back("-" + name);
  for (const auto& name : option.get_lnames())
    flag.names.push_back("--" + name);
  if (!option.nonpositional())
    flag.names = {option.get_single_name()};
  // A check adds its range to the type, "INT:INT in [1 - 256]"; the first word is the type.
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() > 0)
    flag.value = type.substr(0, type.find_first_of(": "));
  return flag;
}

CommandHelp describe_at(const CLI::App& app, Strings path) {
  path.push_back(app.get_name());
  CommandHelp command{
      .path = std::move(path), .text = app.get_description(), .examples = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    const bool is_hidden = option->get_group().empty();
    if (is_hidden)
      continue;
    auto& kind = option->nonpositional() ? command.flags : command.arguments;
    kind.push_back(describe_flag(*option));
  }
  for (const CLI::App* part : app.get_subcommands({})) {
    if (part->get_group().empty())
      continue;
    if (!part->get_name().empty()) {
      command.commands.push_back(describe_at(*part, command.path));
      continue;
    }
    for (const CLI::Option* option : part->get_options())
      command.flags.push_back(describe_flag(*option));
  }
  return command;
}

}  // namespace

// `app` is the program itself.
CommandHelp describe_command(const CLI::App& app) {
  return describe_at(app, {});
}

void say_exit_codes(CLI::App& app) {
  const std::string text = app.get_footer();
  if (!has_text(text, "xit code"))
    app.footer(text + "Exit codes: 0 done, 1 it could not be done, 2 wrong usage.\n");
  for (CLI::App* command :
       app.get_subcommands([](const CLI::App* part) { return !part->get_name().empty(); }))
    say_exit_codes(*command);
}

}  // namespace muster
