// `--config FILE`: a command's flags from a TOML file. Called by run.cc before the command line is
// parsed.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace CLI {
class App;
}

namespace muster {

// The file as flags of `command`, for the front of its arguments, so that flags typed there win:
//
//     nproc-per-node = 4             # --nproc-per-node 4; underscores will do too
//     quiet = true                   # --quiet; false leaves it out
//     rank-memory = ["40GiB", "20GiB"]   # joined by commas
//     [env]                          # --env NAME=VALUE for each; or env = ["NAME=VALUE"]
//     NCCL_DEBUG = "INFO"
//
// The keys of the flags stand at the top, in no table. Throws: io; invalid_argument naming the
// file, line and column: no TOML, no flag of this name, a value of another kind.
Strings config_arguments(const CLI::App& command, const std::string& path);

// Takes each --config off `args` and puts the files' flags at their front, in the files' order.
// Returns the files.
Strings use_config_file(const CLI::App& command, Strings& args);

}  // namespace muster
