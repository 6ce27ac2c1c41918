// The file is read line by line. A line whose sum is right is a record, and must follow the one
// before it; records are folded into the state of their tasks. Only the end of the file may be
// damaged, as a run leaves it that is killed while it writes.
#include "muster/tasks/journal/read.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_words.h"
#include "muster/base/lists.h"
#include "muster/tasks/journal/line.h"
#include "muster/tasks/stop_pause.h"

namespace muster {

namespace {

using ReadJson = nlohmann::json;

// The task's stops with one more attempt that has stopped.
TaskStops stops_after(const TaskStops& before, const TaskAttempt& attempt) {
  return {.count = count_stops(before.count, *attempt.ended - attempt.began),
          .last = *attempt.ended};
}

// The task's state after such an end. A task that is neither done nor failed for good waits again.
TaskState state_after(const std::string& how) {
  if (how == "done")
    return TaskState::done;
  return how == "failed" ? TaskState::failed : TaskState::waiting;
}

// Folds records into what is known of each task.
class JournalFold {
 public:
  JournalFold(const Tasks& tasks, JournalState& state) : tasks_(tasks), state_(state) {
    for (const size_t i : indices_of(tasks))
      places_.emplace(tasks[i].name, i);
  }

  // Throws: nlohmann's exceptions, std::out_of_range and Error when the record makes no sense here.
  void take(const ReadJson& record) {
    const std::string kind = record.at("e");
    if (kind == "resume")
      end_lost_attempts(state_);
    state_.seconds = std::max(state_.seconds, record.value("at", 0.0));
    if (is_one_of(kind, "run", "resume"))
      begin_run(record);
    if (kind == "run")
      return take_head(record);
    if (is_one_of(kind, "resume", "mark"))
      return state_.marks.push_back(record.at("mark"));
    if (kind == "finish")
      return;
    const std::string name = record.at("task");
    const auto place = places_.find(name);
    if (place == places_.end())
      throw failed_precondition(
          "a record of '", printable(name), "', which is no task of this run");
    const size_t task = place->second;
    if (kind == "start")
      return take_start(record, task);
    if (kind == "end")
      return take_end(record, task);
    if (kind != "skip")
      throw failed_precondition("a record of kind ", kind);
    state_.results[task].state = TaskState::skipped;
    state_.results[task].reason = record.at("reason");
  }

 private:
  // Failures and stops are counted in the last run alone.
  void begin_run(const ReadJson& record) {
    state_.began = record.value("at", 0.0);
    state_.began_wall = record.value("time", 0.0);
    state_.failures.assign(tasks_.size(), {});
    state_.stops.assign(tasks_.size(), {});
  }

  // The journal must be of these tasks: records name them, and results go by their places.
  void take_head(const ReadJson& record) {
    if (record.at("schema") != kJournalSchema || record.at("num_tasks") != tasks_.size())
      throw failed_precondition("the journal of other tasks");
    state_.head = {record.at("run"), record.at("tasks_hash"), record.at("mark")};
    state_.marks = {state_.head.mark};
  }

  // Since it has no end yet, the attempt runs.
  void take_start(const ReadJson& record, size_t task) {
    TaskResult& result = state_.results[task];
    TaskAttempt attempt{.attempt = record.at("attempt"), .host = record.at("host")};
    attempt.devices = record.value("devices", Strings());
    attempt.gpu_indices = record.value("gpus", Ints());
    attempt.gpu_fraction = record.value("fraction", 1.0);
    attempt.cpus = record.value("cpus", Ints());
    attempt.began = record.at("at");
    attempt.log = record.at("log");
    result.state = TaskState::running;
    result.reason.clear();
    result.attempts.push_back(std::move(attempt));
    state_.taken[task] = {record.value("memory", uint64_t{0}), record.value("num_cpus", 0)};
  }

  // Ends an attempt that has begun: the last one of its task.
  void take_end(const ReadJson& record, size_t task) {
    TaskResult& result = state_.results[task];
    if (result.attempts.empty() || result.attempts.back().attempt != record.at("attempt"))
      throw failed_precondition("the end of another attempt than the last");
    TaskAttempt& attempt = result.attempts.back();
    const std::string how = record.at("how");
    if (how == "refused") {  // it never began: the attempt before it stands
      result.attempts.pop_back();
      result.state = TaskState::waiting;
      result.reason = record.value("reason", "");
      return;
    }
    attempt.ended = record.at("at").get<double>();
    if (is_one_of(how, "again", "failed")) {
      ++state_.failures[task].count;
      state_.failures[task].last = *attempt.ended;
    }
    state_.stops[task] = how == "stopped" ? stops_after(state_.stops[task], attempt) : TaskStops();
    attempt.exit_code = record.value("code", 0);
    attempt.signal = record.value("signal", 0);
    attempt.lost = record.value("lost", false);
    attempt.timed_out = record.value("timed_out", false);
    result.reason = record.value("reason", "");
    result.last_json = record.value("json", "");
    result.state = state_after(how);
  }

  const Tasks& tasks_;
  JournalState& state_;
  std::unordered_map<std::string, size_t> places_;
};

// The JSON of a line, without its end; nothing when the line is not whole.
std::optional<ReadJson> whole_record(std::string_view line) {
  if (line.size() < kJournalSumChars + 2)
    return std::nullopt;
  const std::string json(line.substr(kJournalSumChars + 1));
  const auto whole = journal_line(json);
  if (line != std::string_view(whole).substr(0, whole.size() - 1))
    return std::nullopt;
  ReadJson record = parsed_json<ReadJson>(json);
  if (!record.is_object())
    return std::nullopt;
  return record;
}

// Says what is wrong with the record's place; empty: nothing. In journals of old versions the first
// records do not tell the sum of the one before them: `chained` becomes true with the first that
// does.
std::string misplaced(const ReadJson& record, const std::string& last_sum, bool& chained) {
  const std::string after = record.value(kJournalAfter, "");
  const bool follows = after.empty() ? !chained : after == last_sum;
  chained |= !after.empty();
  if (follows)
    return {};
  if (last_sum.empty())
    return "one that does not begin a journal: those before it are gone";
  return "one that does not follow the line before it: one between them is gone, or changed";
}

[[noreturn]] void fail_at(const std::string& path, size_t number, const std::string& got) {
  throw failed_precondition("journal: expected whole records, got ",
                            got,
                            " (",
                            path,
                            ", line ",
                            number,
                            "); restore the file, or begin anew with another --run-dir");
}

}  // namespace

JournalState blank_state(size_t num_tasks) {
  return {.results = TaskResults(num_tasks),
          .taken = std::vector<TakenShare>(num_tasks),
          .failures = std::vector<TaskFailures>(num_tasks),
          .stops = std::vector<TaskStops>(num_tasks)};
}

// The journal's last record is the last moment of which anything is known.
void end_lost_attempts(JournalState& state) {
  for (TaskResult& result : state.results) {
    if (result.state != TaskState::running)
      continue;
    result.state = TaskState::waiting;
    TaskAttempt& attempt = result.attempts.back();
    attempt.ended = std::max(attempt.began, state.seconds);
    attempt.lost = true;
  }
}

// Clocks may have been set back, or be another host's.
double present_of(const JournalState& state, double wall) {
  if (state.began_wall <= 0)
    return state.seconds;
  return std::max(state.seconds, state.began + wall - state.began_wall);
}

namespace {

// Reads a journal's lines one after the other.
class JournalReader {
 public:
  JournalReader(const std::string& path, const Tasks& tasks)
      : path_(path), state_(blank_state(tasks.size())), fold_(tasks, state_) {}

  // A last line that is not whole is left out, and said.
  JournalState read(std::string_view bytes) {
    size_t from = 0;
    while (from < bytes.size()) {
      const size_t end = bytes.find('\n', from);
      const bool has_end = end != npos;
      const std::string_view line = bytes.substr(from, end - from);
      from = has_end ? end + 1 : bytes.size();
      take_line(line, has_end, from);
    }
    if (damaged_ != 0)
      state_.cut = cat("the last line (",
                       damaged_,
                       ") is not whole: ",
                       bytes.size() - state_.good_bytes,
                       " bytes are cut off; a run that is killed while it writes leaves such a "
                       "line");
    return std::move(state_);
  }

 private:
  // `next`: where the line after it begins.
  void take_line(std::string_view line, bool has_end, size_t next) {
    ++number_;
    const auto record = whole_record(line);
    if (!record || !has_end) {
      if (damaged_ == 0)
        damaged_ = number_;
      return;
    }
    if (damaged_ != 0)
      fail_at(path_, damaged_, "a damaged one with others after it");
    if (const std::string wrong = take_record(*record); !wrong.empty())
      fail_at(path_, number_, wrong);
    state_.good_bytes = next;
    state_.last_sum = line.substr(0, kJournalSumChars);
  }

  // Says what is wrong with the record; empty: nothing.
  std::string take_record(const ReadJson& record) {
    try {
      std::string wrong = misplaced(record, state_.last_sum, chained_);
      if (wrong.empty())
        fold_.take(record);
      return wrong;
    } catch (const std::exception& error) {
      return json_words(error.what());
    }
  }

  const std::string& path_;
  JournalState state_;
  JournalFold fold_;
  size_t number_ = 0;   // of the line
  size_t damaged_ = 0;  // the first line that is not whole; 0: none
  bool chained_ = false;
};

}  // namespace

JournalState journal_from(std::string_view bytes, const std::string& path, const Tasks& tasks) {
  return JournalReader(path, tasks).read(bytes);
}

JournalState read_journal(const std::string& run_dir, const Tasks& tasks) {
  const auto path = journal_path(run_dir);
  return journal_from(read_plain_file(path), path, tasks);
}

}  // namespace muster
