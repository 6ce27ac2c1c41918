// The specs that docs/tasks.md shows are specs.
#include <gtest/gtest.h>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/sweep.h"

namespace muster {
namespace {

std::vector<std::string> toml_blocks() {
  const std::string page = read_file(cat(MUSTER_SOURCE_DIR, "/docs/tasks.md"));
  constexpr std::string_view kBegin = "\n```toml\n";
  std::vector<std::string> blocks;
  for (size_t at = 0; (at = page.find(kBegin, at)) != std::string::npos;) {
    at += kBegin.size();
    const size_t end = page.find("\n```\n", at);
    blocks.push_back(page.substr(at, end + 1 - at));
  }
  return blocks;
}

TEST(TasksDocumentation, EverySpecIsOne) {
  const std::vector<std::string> blocks = toml_blocks();
  ASSERT_EQ(blocks.size(), 5U);
  const size_t num_tasks[] = {12, 20, 23, 2, 10};
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(tasks_of_text(blocks[i], cat("block ", i)).size(), num_tasks[i]) << blocks[i];
  }
}

TEST(TasksDocumentation, TheSweepIsTheSpecBesideIt) {
  std::vector<Task> written = tasks_of_text(toml_blocks().at(4), "block");
  for (Task& task : written)
    task.at = {};
  EXPECT_EQ(tasks_of_sweep({.sweeps = {"lr=0.1,0.01", "seed=1..5"},
                            .command = {"./train", "--lr", "{lr}", "--seed", "{seed}"}}),
            written);
}

TEST(TasksDocumentation, WhatAfterMeans) {
  const std::vector<Task> tasks = tasks_of_text(toml_blocks().at(2), "block");
  EXPECT_EQ(tasks[10].after, std::vector<std::string>{"train-0.1-1"});
  EXPECT_EQ(tasks[20].after.size(), 5U);
  EXPECT_EQ(tasks[22].after, (std::vector<std::string>{"mean-0.1", "mean-0.01"}));
}

}  // namespace
}  // namespace muster
