// Shows a run on standard error while it goes on: on a terminal a table that is drawn again and
// again, below the lines that stay; elsewhere a line for each event. Called by the runner by way of
// RunView.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/tasks/report/run_view.h"

namespace muster {

struct LiveTableOptions {
  int fd = 2;
  bool table = false;  // a terminal: draw the table
  bool quiet = false;  // only failures and notes
  bool hosts = false;  // there are several: each task's is said
  int rows = 24;       // of the terminal
  int columns = 80;
};

// Options for standard error as it is.
LiveTableOptions live_table_options(bool quiet);

class LiveTable : public RunView {
 public:
  // `tasks` must outlive it. `before`: what earlier runs came to; what they did counts as done here
  // too.
  LiveTable(const Tasks& tasks, LiveTableOptions options, const TaskResults& before = {});
  ~LiveTable() override;

  void started(size_t task, const TaskAttempt& attempt) override;
  void ended(size_t task, const TaskResult& result) override;
  void refused(size_t task, const TaskResult& result, bool starved) override;
  void skipped(const Indices& tasks, const std::string& reason) override;
  void note(const std::string& text) override;
  void tick(const TaskSchedule& schedule, double now) override;

  // The table's lines, for tests too.
  Strings lines(const TaskSchedule& schedule, double now) const;

 private:
  struct Like {  // tasks of one [[task]], or of one program
    int left = 0;
    int done = 0;
    double seconds = 0;  // that those took together
    double mean() const { return done == 0 ? 0 : seconds / done; }
  };

  std::string where_of(const TaskAttempt& attempt) const;
  size_t like_of(const Task& task);
  void count_done(size_t task, const TaskResult& result);
  void count_undone(size_t task);
  void say_task(size_t task, const std::string& what);
  std::string head(const TaskSchedule& schedule, double now) const;
  std::string time_left(size_t at_a_time, double now) const;
  void say(const std::string& lines);
  void flush();
  void wipe();

  const Tasks& tasks_;
  LiveTableOptions options_;
  std::map<std::string, size_t> like_numbers_;
  Indices likes_of_;  // by task
  std::vector<Like> likes_;
  std::map<size_t, TaskAttempt> running_;
  std::set<size_t> taken_;    // another job was faster to take the GPU of these
  std::set<size_t> starved_;  // these found no room to begin with
  std::string pending_;       // lines that are to stay
  size_t drawn_ = 0;          // lines of the table on the terminal
  size_t num_ended_ = 0;      // for good
  TimePoint last_drawn_;
};

}  // namespace muster
