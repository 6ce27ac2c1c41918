// Asking a command which hosts there are.
#pragma once

#include <string>
#include <vector>

#include "muster/cluster/hostfile.h"

namespace muster {

// What a program prints, line by line; empty when it cannot be started. Blocking: until it has ended.
std::vector<std::string> lines_of(const std::vector<std::string>& argv);

// The hosts that `command` (a shell's, as the user typed it) prints, in a hostfile's form. Blocking: until it
// has ended. Throws: io when it fails; as parse_hostfile.
std::vector<HostSpec> discover_hosts(const std::string& command);

}  // namespace muster
