// `muster completion bash|zsh|fish`: a script with which that shell completes muster's commands and
// flags.
#pragma once

#include <string>

#include "muster/cli/command_help.h"

namespace muster {

// Adds the subcommand to `app`. `whole` describes the whole program, with all of its commands.
void add_completion(CLI::App& app, CommandHelp (*whole)());

}  // namespace muster
