// What of a program's file is in the way of its start, in words. For whoever executes it.
#pragma once

#include <string>

#include "muster/supervise/child.h"

namespace muster {

bool is_regular_file(const std::string& path);
bool is_executable_file(const std::string& path);

SpawnError not_found(const std::string& name, const std::string& why);
SpawnError not_startable(const std::string& name, const std::string& why);

// For a path that is known not to be an executable file.
SpawnError cannot_execute(const std::string& path);

// For one that execve has refused with this errno.
SpawnError cannot_exec(const std::string& path, int errno_value);

// Throws: SpawnError for a script whose first line ends as on Windows, where its interpreter begins
// and then fails of that. `search_path` is that of the process to be.
void expect_words_without_line_end(const std::string& path, const std::string& search_path);

}  // namespace muster
