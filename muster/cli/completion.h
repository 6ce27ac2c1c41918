// `muster completion bash|zsh|fish`: a script with which that shell completes muster's commands and
// flags.
#pragma once

#include <functional>
#include <string>

#include "muster/cli/command_help.h"

namespace muster {

std::string bash_completion(const CommandHelp& program);
std::string zsh_completion(const CommandHelp& program);
std::string fish_completion(const CommandHelp& program);

// Adds the subcommand to `app`. `whole` describes the whole program, with all of its commands.
void add_completion(CLI::App& app, const std::function<CommandHelp()>& whole, int* exit_code);

}  // namespace muster
