// A folder that systemd-tmpfiles clears of old files, as it does with /tmp: everything in it is old
// enough.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {

class CleanedPlace {
 public:
  CleanedPlace() { std::filesystem::create_directory(path()); }

  std::string path() const { return scratch_.path() + "/tmp"; }
  bool has_cleaner() const { return std::system("command -v systemd-tmpfiles >/dev/null") == 0; }

  void clean() const {
    const std::string old_file = scratch_.write("tmp/unrelated/old", "");
    const std::string rules = scratch_.write("rules.conf", cat("d ", path(), " 0755 - - 0\n"));
    ASSERT_EQ(std::system(cat("systemd-tmpfiles --clean ", rules).c_str()), 0);
    ASSERT_FALSE(std::filesystem::exists(old_file)) << "the cleaner has not been here";
  }

 private:
  ScratchFolder scratch_;
};

}  // namespace muster
