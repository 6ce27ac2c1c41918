#include <cstdlib>
#include <sstream>
#include <vector>

#include "muster/tasks/journal/line.h"
#include "muster/tasks/journal/read.h"
#include "muster/tasks/journal/task_file.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

const std::vector<Task>& tasks() {
  static const std::vector<Task> two = [] {
    std::vector<Task> made(2);
    made[0].name = "a";
    made[1].name = "b";
    return made;
  }();
  return two;
}

// Each line as a record, with the sums that belong to it, which a fuzzer cannot guess.
std::string with_sums(const std::string& text) {
  std::string journal;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    journal += journal_line(line);
  return journal;
}

// A task that runs has an attempt, and one that ran when the run was killed has lost it.
void check_journal(const std::string& bytes) {
  JournalState state = journal_from(bytes, "fuzz", tasks());
  if (state.results.size() != tasks().size() || state.good_bytes > bytes.size())
    std::abort();
  end_lost_attempts(state);
  for (const TaskResult& result : state.results) {
    if (result.state == TaskState::running)
      std::abort();
  }
  present_of(state, 0);
}

}  // namespace

// What the folder of a run of `muster tasks` says: its journal, and its tasks as a file of its own.
void fuzz_journal(const std::string& text) {
  answer_or_error([&] { check_journal(text); });
  answer_or_error([&] { check_journal(with_sums(text)); });
  answer_or_error([&] {
    const TaskFile file = task_file_of(text, "fuzz");
    if (task_file_of(to_text(file), "fuzz") != file)
      std::abort();
  });
}

}  // namespace muster
