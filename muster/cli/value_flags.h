// Flags that take a value, with a check of it: its error tells what was expected, and CLI11 puts
// the flag's name before it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "muster/base/strings.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace muster {

// Says what is wrong with a value, for CLI11's `check`; empty: nothing.
using FlagCheck = std::function<std::string(const std::string&)>;

// Refuses an empty value, which is a shell variable that was not set. `expected`: "a folder".
FlagCheck not_empty(const std::string& expected);

// A decimal number; `most` is what its type holds.
FlagCheck whole_number_from(int64_t least, int64_t most = std::numeric_limits<int>::max());

// A flag with a text that is not empty. `type` is what help has for it: "DIR".
void text_flag(CLI::App* command,
               const std::string& flag,
               std::string& value,
               const std::string& type,
               const std::string& expected,
               const std::string& help);

// A flag with a number of things, 1 at least.
void count_flag(CLI::App* command, const std::string& flag, int& value, const std::string& help);

// A flag that may be repeated, with one value each time.
CLI::Option* repeated_flag(CLI::App* command,
                           const std::string& flag,
                           Strings& values,
                           const std::string& type,
                           const std::string& help);

// Every flag that takes a value refuses an empty one, but those whose default torchrun writes as
// ''.
void refuse_empty_values(CLI::App& app);

// The flags that have no title yet get this one in --help.
void entitle(CLI::App* command, const char* title);

// --hostfile, --ssh and --remote-muster.
void reach_flags(CLI::App* command,
                 std::string& hostfile,
                 std::string& ssh,
                 std::string& remote_muster);

}  // namespace muster
