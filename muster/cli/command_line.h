// Finds where a launcher's own flags end and the program's begin. CLI11 parses the flags; it must
// never see the program's.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace CLI {
class App;
}

namespace muster {

// Takes PROGRAM and everything after it off `args` and returns them, untouched. What is left are
// flags of `command`, with torchrun's underscore spellings (--nproc_per_node) turned into the
// hyphen ones. A "--" before PROGRAM is dropped. Flags that `command` does not know are left for
// its parser to refuse.
Strings cut_program(const CLI::App& command, Strings& args);

}  // namespace muster
