// Journals of small runs, for the tests of what is written and read.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "muster/tasks/journal/journal.h"
#include "muster/tasks/journal/read.h"
#include "tests/device/scratch.h"
#include "tests/tasks/schedule/machines.h"

namespace muster::tasks_test {

inline const std::vector<Task> kTasks = {
    task_of("a", {{.cpus = 1}}), task_of("b", {{.gpus = 1}}), task_of("c", {{.cpus = 1}})};

inline TaskAttempt attempt_at(double began, int number) {
  return {.attempt = number,
          .host = "box",
          .devices = {"GPU-1"},
          .gpu_indices = {3},
          .gpu_fraction = 0.5,
          .cpus = {4, 5},
          .began = began,
          .log = "/l\xff/0.log"};
}

// A journal in which a is done, b runs, and c was skipped.
inline std::string write_some(const ScratchFolder& folder) {
  Journal journal(folder.path());
  journal.begin_at(0);
  journal.head({"id", "hash", "mark"}, kTasks.size());
  TaskAttempt a = attempt_at(0.5, 0);
  journal.start("a", a, {100, 2});
  a.ended = 1.5;
  journal.end("a", a, AttemptEnd::done, "", "{\"x\": 1}");
  journal.start("b", attempt_at(1, 0), {});
  const uint64_t last = journal.skip("c", "after b, which failed", 2.5);
  journal.sync();
  EXPECT_EQ(journal.on_disk(), last);
  return read_file(journal_path(folder.path()));
}

// Behind all its records.
inline void go_on(Journal& journal, const ScratchFolder& folder) {
  const JournalState state = read_journal(folder.path(), kTasks);
  journal.begin_at(state.good_bytes, state.last_sum);
}

}  // namespace muster::tasks_test
