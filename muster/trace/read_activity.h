// Activity files as values, for `muster top`, reports and warnings of late ranks. A file may change
// while it is read, and may hold anything: what does not fit is refused or left out, text is cut
// and printable, and nothing of a file leads anywhere but into the values. Knows nothing of who
// writes them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/trace/activity_layout.h"
#include "muster/trace/category.h"

namespace muster {

struct SpanView {
  std::string name{};
  Category category = Category::other;
  int64_t begin_ns = 0;
};

struct ThreadView {
  int thread = 0;
  std::string name{};
  std::vector<SpanView> spans{};  // outermost first
  int deeper = 0;                 // within those

  std::string span_names() const;  // "TrainStep > backward"
};

struct CallView {
  uint64_t number = 0;  // the rank's first is 1
  std::string group{};
  std::string operation{};
  int64_t sequence = 0;
  std::string what{};  // type and shape
  int64_t bytes = 0;
  int peer = -1;  // of a message; -1: a collective
  int tag = 0;
  int thread = 0;
  int64_t begin_ns = 0;
  std::optional<int64_t> end_ns{};
  CallState state = CallState::under_way;

  std::string text() const;  // "all_reduce #41 f32[1000]", "send to 3 f32[4]"
};

// Units: times in nanoseconds of the host's monotonic clock; plus unix_minus_monotonic_ns they are
// Unix time.
struct ActivityView {
  int rank = 0;
  int world_size = 1;
  int attempt = 0;
  int64_t pid = 0;
  int64_t pid_namespace = 0;
  int64_t start_ticks = 0;  // of the process, as /proc/PID/stat has it
  int stack_signal = 0;     // that makes the process write its stack; 0: none does
  std::string host{};
  std::string device{};
  std::string libtorch{};  // its version; empty: nobody told, of the next two too
  std::string backend{};
  std::string device_name{};
  int64_t unix_minus_monotonic_ns = 0;
  int64_t opened_ns = 0;
  std::optional<int64_t> closed_ns{};  // when the rank has left its function
  int64_t step = 0;
  int64_t step_ns = 0;  // when it changed last; 0: never
  int64_t steps = 0;
  int64_t samples = 0;
  std::optional<double> loss{};         // may be NaN
  Category category = Category::other;  // of the main thread, since:
  int64_t category_since_ns = 0;
  std::array<int64_t, kActivityCategories> totals_ns{};  // by Category, without the present one
  int main_thread = 0;
  std::vector<ThreadView> threads{};  // those in spans, the main thread first
  uint64_t num_calls = 0;             // that have begun, of which the last 1024 are:
  std::vector<CallView> calls{};      // earliest first

  const ThreadView* main() const;  // nullptr where it is in no span
  std::array<int64_t, kActivityCategories> totals_at(int64_t now_ns) const;  // with what it is in

  // By its host's monotonic clock: what a rank that was killed is known to have lived until.
  int64_t last_sign_ns() const;
};
using ActivityViews = std::vector<ActivityView>;

// The bytes are of one moment, or steady_copy() has them. `name` is what errors call them. Throws:
// invalid_argument for what is no activity file, or one of another version.
ActivityView parse_activity(const std::string& bytes, const std::string& name);

// Throws: io; as parse_activity.
ActivityView read_activity(const std::string& path);

struct ActivityFile {
  int attempt = 0;
  int rank = 0;
  std::string path{};
};

// The files of the last attempt, or `attempt`, by rank; empty where there is none. Ranks of other
// hosts, which do not write here, have copies here once the job has ended (activity_copy.h).
std::vector<ActivityFile> activity_files(const std::string& run_dir,
                                         std::optional<int> attempt = {});

// Of those files that can be read. Throws: as activity_files.
ActivityViews readable_activity(const std::string& run_dir, std::optional<int> attempt = {});

// This host's name as ActivityView::host has it.
std::string activity_host_name();

// Removes what ranks of this host have left in a folder that another job has used before. Files of
// other hosts, and of processes that live, stay.
void remove_earlier_activity(const std::string& run_dir);

// Removes the copies of other hosts' files, unless they are of this launch of the job
// (JobFacts::launch).
void keep_copies_of_launch(const std::string& run_dir, const std::string& launch);

}  // namespace muster
