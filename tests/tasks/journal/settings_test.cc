#include "muster/tasks/journal/settings.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
namespace {

TEST(TasksSettings, WhatWasNotToldIsNotKept) {
  EXPECT_TRUE(to_texts({}).empty());
  const TasksSettings none = settings_of({});
  EXPECT_FALSE(none.gpus || none.numa_binding || none.visibility || none.fail_fast);
  EXPECT_TRUE(none.lease);
}

TEST(TasksSettings, GoIntoTextsAndBack) {
  const std::map<std::string, std::string> texts = {{"allow-nan", "yes"},
                                                    {"cpus", "16"},
                                                    {"fail-fast", "no"},
                                                    {"gpus", "0,2-5"},
                                                    {"hosts", "a:4,b"},
                                                    {"inventory", "/box"},
                                                    {"jobs", "3"},
                                                    {"no-lease", "yes"},
                                                    {"ssh", "ssh -p 2"},
                                                    {"standalone", "yes"},
                                                    {"visibility", "own"},
                                                    {"numa-binding", "exclusive"},
                                                    {"remote-muster", "/opt/muster"}};
  const TasksSettings settings = settings_of(texts);
  EXPECT_EQ(settings.gpus->parts, Selection("0,2-5").parts);
  EXPECT_EQ(settings.numa_binding, NumaBinding::exclusive);
  EXPECT_EQ(settings.visibility, Visibility::own);
  EXPECT_EQ(settings.fail_fast, false);
  EXPECT_EQ(settings.cpus, 16);
  EXPECT_FALSE(settings.lease);
  EXPECT_EQ(to_texts(settings), texts);
}

TEST(TasksSettings, OthersOfTheRunArePassedOver) {
  EXPECT_TRUE(to_texts(settings_of({{"folder", "/x"}, {"spec", "t.toml"}})).empty());
}

TEST(TasksSettings, ABadTextIsAnError) {
  EXPECT_THROW(settings_of({{"gpus", "0,,1"}}), Error);
  EXPECT_THROW(settings_of({{"visibility", "some"}}), Error);
}

}  // namespace
}  // namespace muster
