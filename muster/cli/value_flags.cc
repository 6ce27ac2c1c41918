// CLI11 reads the words; what a word may be is checked here, in messages of one form.
#include "muster/cli/value_flags.h"

#include <CLI/CLI.hpp>

#include <array>

#include "muster/base/contains.h"

namespace muster {

// CLI11 would take an empty value like any other.
FlagCheck not_empty(const std::string& expected) {
  return [expected](const std::string& text) {
    return text.empty() ? cat("expected ", expected, ", got ''; give it or leave the flag out")
                        : "";
  };
}

// CLI11's own Range would show both bounds, of which one is often that of the type.
FlagCheck whole_number_from(int64_t least, int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    const auto number = parse_int(text);
    if (number && *number >= least && *number <= most)
      return "";
    const bool too_large = number && *number > most;
    const auto bound = too_large ? cat("most ", most) : cat("least ", least);
    return cat("expected a whole number of at ", bound, ", got '", printable(text), "'");
  };
}

// `type` is what --help shows for the value.
void text_flag(CLI::App* command,
               const std::string& flag,
               std::string& value,
               const std::string& type,
               const std::string& expected,
               const std::string& help) {
  command->add_option(flag, value, help)->type_name(type)->check(not_empty(expected));
}

void count_flag(CLI::App* command, const std::string& flag, int& value, const std::string& help) {
  command->add_option(flag, value, help)->type_name("N")->check(whole_number_from(1));
}

// Without these, CLI11 would take the words that follow the value for values too.
CLI::Option* repeated_flag(CLI::App* command,
                           const std::string& flag,
                           Strings& values,
                           const std::string& type,
                           const std::string& help) {
  return command->add_option(flag, values, help)
      ->type_name(type)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// CLI11 takes no empty variable of the environment, so only what was typed or is in a file is seen.
void refuse_empty_values(CLI::App& app) {
  constexpr std::array kMayBeEmpty = {
      "--rdzv-conf", "--rdzv-endpoint", "--local-ranks-filter", "--log-line-prefix-template"};
  for (CLI::Option* option : app.get_options()) {
    const bool takes_value = option->get_type_size() > 0 && !option->get_positional();
    const auto is_named = [&](const char* name) {
      return option->check_name(name);
    };
    if (takes_value && none_of(kMayBeEmpty, is_named))
      option->check(not_empty("a value"));
  }
  for (CLI::App* command : app.get_subcommands({}))
    refuse_empty_values(*command);
}

// Called after a group of flags was added: the flags that have no title yet are that group's.
void entitle(CLI::App* command, const char* title) {
  // "Options" is CLI11's title for flags that have none.
  const auto has_no_title = [](const CLI::Option* option) {
    const bool is_flag = !option->get_positional() && option->get_name() != "--help";
    return is_flag && option->get_group() == "Options";
  };
  for (CLI::Option* option : command->get_options(has_no_title))
    option->group(title);
}

// `muster run` and `muster tasks` reach hosts the same way.
void reach_flags(CLI::App* command,
                 std::string& hostfile,
                 std::string& ssh,
                 std::string& remote_muster) {
  text_flag(command,
            "--hostfile",
            hostfile,
            "FILE",
            "a file",
            "A file of hosts, one a line: a slots=4 [none]");
  text_flag(command,
            "--ssh",
            ssh,
            "CMD",
            "a command",
            "Command that reaches the hosts, such as 'ssh -p 2222' [MUSTER_SSH, or ssh]");
  text_flag(command,
            "--remote-muster",
            remote_muster,
            "PATH",
            "a path",
            "Path of muster on the hosts [the same as here]");
}

}  // namespace muster
