// A task's result as cells of named columns, which the table and the CSV share. For results*.cc; a
// private header.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/tasks/task.h"

namespace muster {

struct ResultColumns {
  Strings parameters{};
  Strings fields{};  // of the JSON lines, in the order in which they were met
};

ResultColumns result_columns(const Tasks& tasks, const TaskResults& results);

// The JSON line's fields in its order: texts as they are, all else as JSON. None when it is no
// object.
using ResultFields = std::vector<std::pair<std::string, std::string>>;
ResultFields fields_of(const std::string& json_line);

// The task's parameter, or the field, of that name; empty: it has none.
std::string parameter(const Task& task, const std::string& name);
std::string field(const ResultFields& fields, const std::string& name);

// "GPU 0,2", "GPU 1 (0.5)", "CPU 4-7", "a: GPU 0" where hosts are told apart; empty: it was not
// started.
std::string devices_text(const TaskAttempt& attempt, bool with_host);

// How often it was started again: the number of its last attempt, which counts from 0. Empty: it
// was not started.
std::string restarts_text(const TaskResult& result);

// "exit code 3", "SIGKILL", "time limit", "running"; empty: it ended well.
std::string end_text(const TaskAttempt& attempt);

// "done", "failed (SIGKILL)", "failed (time limit)".
std::string state_text(const TaskResult& result);

// Throws: invalid_argument unless there is a result for each task.
void check_results(const Tasks& tasks, const TaskResults& results);

}  // namespace muster
