// Specs of shell tasks for the real `muster tasks`, what it says, and what its runs leave in `run`.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {

// A shell task; `more` are further lines of its table.
inline std::string task_table(const std::string& name,
                              const std::string& script,
                              const std::string& more = "") {
  return cat("[[task]]\nname = \"",
             name,
             "\"\nargv = [\"sh\", \"-c\", '''",
             script,
             "''']\n",
             more.find("needs") == std::string::npos ? "needs = { cpus = 1 }\n" : "",
             more,
             "\n");
}

inline std::string log_of_task(const ScratchFolder& folder,
                               const std::string& name,
                               int attempt = 0) {
  return read_file(cat(folder.path(), "/run/logs/", name, "/", attempt, ".log"));
}

// Those of the pieces that the text does not have, each behind the one before it.
inline std::vector<std::string> in_order(const std::string& text,
                                         const std::vector<std::string>& pieces) {
  std::vector<std::string> missing;
  size_t at = 0;
  for (const std::string& piece : pieces) {
    const size_t found = text.find(piece, at);
    if (found == std::string::npos) {
      missing.push_back(piece);
    } else {
      at = found;
    }
  }
  return missing;
}

// Waits until the file is there.
inline bool appears(const std::string& path) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!std::filesystem::exists(path)) {
    if (deadline.passed())
      return false;
    ::usleep(2'000);
  }
  return true;
}

}  // namespace muster
