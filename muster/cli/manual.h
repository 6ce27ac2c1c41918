// `muster manual [COMMAND…]`: a page of the manual, for man(1).
#pragma once

#include <string>

#include "muster/cli/command_help.h"

namespace muster {

// Adds the subcommand to `app`. `whole` describes the whole program, with all of its commands.
void add_manual(CLI::App& app, CommandHelp (*whole)());

}  // namespace muster
