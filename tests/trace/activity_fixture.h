// A rank's activity file in a folder of its own, and a collective to write into it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/read_activity.h"

namespace muster {

class ActivityTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const temporary = std::getenv("TMPDIR");
    std::string name = cat(temporary == nullptr ? "/tmp" : temporary, "/muster-activity-XXXXXX");
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    Activity::set(nullptr);
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Activity> open(int rank = 0, int world_size = 1) {
    auto activity = std::make_unique<Activity>(
        activity_path(folder_, 0, rank),
        ActivityOwner{.rank = rank, .world_size = world_size, .device = "cpu:0"});
    Activity::set(activity.get());
    return activity;
  }
  static ActivityView view_of(const Activity& activity) { return read_activity(activity.path()); }

  std::string folder_;
};

inline CallFacts call_facts(int64_t sequence, const std::vector<int64_t>& sizes) {
  return {.group = "world",
          .operation = "all_reduce",
          .sequence = sequence,
          .type = "f32",
          .sizes = sizes.data(),
          .dimensions = sizes.size(),
          .bytes = 4000};
}

}  // namespace muster
