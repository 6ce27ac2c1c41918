// The command line that reaches another host by ssh. For whoever starts something there: `muster
// run --hosts`, `muster tasks --hosts`.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// "b" of "user@b".
std::string without_user(const std::string& host);

// `ssh` is the command as the user has it, whose first word is a program; what is executed on
// `host` are the words of `program`, not looked at by the shell there. ssh itself asks for no
// password and waits 15 s.
Strings ssh_command(const Strings& ssh, const std::string& host, const Strings& program);

// What to try by hand where ssh itself has failed, or has ended before what it was to start.
std::string advice_for_ssh(const Strings& ssh, const std::string& host);

}  // namespace muster
