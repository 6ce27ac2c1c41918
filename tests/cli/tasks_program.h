// Specs of shell tasks for the real `muster tasks`, and what its runs leave in `run`.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {

// A shell task; `more` are further lines of its table.
inline std::string task_table(const std::string& name, const std::string& script,
                              const std::string& more = "") {
  return cat("[[task]]\nname = \"", name, "\"\nargv = [\"sh\", \"-c\", '''", script, "''']\n",
             more.find("needs") == std::string::npos ? "needs = { cpus = 1 }\n" : "", more, "\n");
}

inline std::string log_of_task(const ScratchFolder& folder, const std::string& name, int attempt = 0) {
  return read_file(cat(folder.path(), "/run/logs/", name, "/", attempt, ".log"));
}

// Waits until the file is there.
inline bool appears(const std::string& path) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!std::filesystem::exists(path)) {
    if (deadline.passed()) return false;
    ::usleep(2'000);
  }
  return true;
}

}  // namespace muster
