// A script holds the names of all commands and flags as they are now, so that completing needs no
// call of muster. bash gets names alone; zsh and fish show texts of help beside them.
#include "muster/cli/completion.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <ranges>
#include <string_view>
#include <utility>

#include "muster/base/fd.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

namespace {

constexpr auto kCompletionExamples = R"(Examples:
  source <(muster completion bash)       in this shell, or in ~/.bashrc
  muster completion zsh > "${fpath[1]}/_muster"
  muster completion fish > ~/.config/fish/completions/muster.fish
`make install` puts them where each shell looks.
)";

// Visits a command before its parts: muster, muster run, …, muster checkpoint, muster checkpoint
// ls.
void for_each_command(const CommandHelp& command,
                      const std::function<void(const CommandHelp&)>& visit) {
  visit(command);
  for (const CommandHelp& part : command.commands)
    for_each_command(part, visit);
}

// Returns the command's path without the program: "checkpoint show".
std::string path_of(const CommandHelp& command) {
  return join(command.path | std::views::drop(1), " ");
}

// Returns the text with each character that `by` names replaced.
std::string replaced(const std::string& text, const std::map<char, std::string>& by) {
  return sum_of<std::string>(text, [&](char c) { return find_or(by, c, std::string(1, c)); });
}

// Both of these make one line of a text. zsh's text stands in the brackets of _arguments.

std::string quoted_for_fish(const std::string& text) {
  return "'" + replaced(text, {{'\'', R"(\')"}, {'\\', R"(\\)"}, {'\n', " "}}) + "'";
}

std::string text_for_zsh(const std::string& text) {
  return replaced(text,
                  {{'[', R"(\[)"}, {']', R"(\])"}, {':', R"(\:)"}, {'\'', R"('\'')"}, {'\n', " "}});
}

// Returns the name of the zsh function that completes the command.
std::string zsh_function(const CommandHelp& command) {
  return "_" + join(command.path, "_");
}

// Returns the flags of a command, as arguments of zsh's _arguments.
std::string zsh_specs(const CommandHelp& command) {
  std::string specs;
  for (const FlagHelp& flag : command.flags) {
    const std::string value =
        flag.value.empty() ? "" : cat(":", text_for_zsh(flag.value), ":_files");
    specs += sum_of<std::string>(flag.names, [&](const auto& name) {
      return cat(" \\\n    '", name, "[", text_for_zsh(flag.text), "]", value, "'");
    });
  }
  return specs;
}

// The script walks along the words that are commands, and completes flags or commands of the last.
std::string bash_completion(const CommandHelp& program) {
  std::string commands, flags;
  for_each_command(program, [&](const CommandHelp& command) {
    const auto path = shell_quoted(path_of(command));
    const auto command_names = mapped(command.commands, &CommandHelp::name);
    const auto flag_names = concatenated(command.flags, &FlagHelp::names);
    if (!command_names.empty())
      commands += cat("    ", path, ") commands='", join(command_names, " "), "' ;;\n");
    flags += cat("    ", path, ") flags='", join(flag_names, " "), "' ;;\n");
  });
  return cat(R"(# bash completion of muster, made by `muster completion bash`.
_muster_commands() {
  commands=
  case $1 in
)",
             commands,
             R"(  esac
}
_muster_flags() {
  flags=
  case $1 in
)",
             flags,
             R"(  esac
}
_muster() {
  local current=${COMP_WORDS[COMP_CWORD]} path= word commands flags i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    _muster_commands "$path"
    [[ " $commands " == *" $word "* ]] || break
    path=${path:+$path }$word
  done
  _muster_commands "$path"
  _muster_flags "$path"
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  elif ((i == COMP_CWORD)); then
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
  else
    COMPREPLY=()  # a value, a program or its arguments: files
  fi
}
complete -o default -F _muster muster
)");
}

// Each command is a function that completes its flags and calls the function of the next command.
std::string zsh_completion(const CommandHelp& program) {
  std::string functions;
  for_each_command(program, [&](const CommandHelp& command) {
    functions += cat(zsh_function(command), "() {\n");
    const auto specs = zsh_specs(command);
    if (command.commands.empty()) {
      functions += cat("  _arguments", specs, " \\\n    '*::arguments:_files'\n}\n");
      return;
    }
    functions += cat("  local state line\n  _arguments -C",
                     specs,
                     " \\\n    '1: :->command' \\\n    '*:: :->arguments'\n"
                     "  case $state in\n    command)\n      local -a commands=(");
    functions += sum_of<std::string>(command.commands, [&](const CommandHelp& part) {
      return cat("\n        '", part.name(), ":", text_for_zsh(part.text), "'");
    });
    functions +=
        ")\n      _describe command commands\n      _files ;;\n    arguments) case $line[1] in";
    for (const CommandHelp& part : command.commands)
      functions += cat("\n        ", part.name(), ") ", zsh_function(part), " ;;");
    functions += "\n        *) _files ;;\n      esac ;;\n  esac\n}\n";
  });
  return cat("#compdef muster\n# zsh completion of muster, made by `muster completion zsh`.\n",
             functions,
             "_muster \"$@\"\n");
}

// The function of fish that says where on the line the cursor is, as bash's script walks along it.
// All words that follow a command's own are its arguments, whatever they are called.
constexpr auto kFishFunction = R"(
function __muster_at
  set -l path ''
  set -l arguments
  set -l words (commandline -opc)
  set -e words[1]
  for word in $words
    set -l next (string trim -- "$path $word")
    if not set -q arguments[1]; and contains -- $next $__muster_paths
      set path $next
    else
      set -a arguments $word
    end
  end
  test "$path" = "$argv[2]"; or return 1
  test $argv[1] = flags; or not set -q arguments[1]
end
)";

// fish takes a line for each flag, with the condition under which it is offered.
std::string fish_completion(const CommandHelp& program) {
  std::string paths = "set -g __muster_paths";
  std::string lines;
  for_each_command(program, [&](const CommandHelp& command) {
    const auto path = path_of(command);
    paths += framed(" '", path, "'");
    const std::string complete = "complete -c muster -n '__muster_at ";
    for (const CommandHelp& part : command.commands) {
      lines += cat(complete,
                   "commands \"",
                   path,
                   "\"' -a ",
                   part.name(),
                   " -d ",
                   quoted_for_fish(part.text),
                   "\n");
    }
    for (const FlagHelp& flag : command.flags) {
      std::string names;
      for (const auto& name : flag.names)
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      lines += cat(complete,
                   "flags \"",
                   path,
                   "\"'",
                   names,
                   flag.value.empty() ? "" : " -r",
                   " -d ",
                   quoted_for_fish(flag.text),
                   "\n");
    }
  });
  return cat("# fish completion of muster, made by `muster completion fish`.\n",
             paths,
             kFishFunction,
             lines);
}

constexpr std::pair<std::string_view, std::string (*)(const CommandHelp&)> kCompletions[] = {
    {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};

}  // namespace

// `whole` builds all commands, which takes time, so it is called only now that it is needed.
void add_completion(CLI::App& app, CommandHelp (*whole)()) {
  auto* const command =
      app.add_subcommand("completion", "Print a shell's completion of commands and flags")
          ->footer(kCompletionExamples);
  static std::string shell;  // a process parses one command line
  command->add_option("SHELL", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback(
      [whole] { write_all(STDOUT_FILENO, lookup(kCompletions, shell, nullptr)(whole())); });
}

}  // namespace muster
