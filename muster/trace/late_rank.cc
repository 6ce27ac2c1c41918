// How it works: late_ranks.h calls tell_of_ranks() once a wait, which must not block: a thread then
// reads the late ranks' activity files, asks each process for its stack, and warns. Ranks of other
// hosts are described by their own host's agent.
#include "muster/trace/late_rank.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/late_ranks.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/hosts_folder.h"

namespace muster {

namespace {

// More would hide the rest of the log.
constexpr size_t kMostDescribed = 4;
// A rank that computes answers at once; one that is stuck in the kernel never does.
constexpr std::chrono::seconds kPatienceForStack{2};

// A file may say that something will begin; then it has lasted no time.
std::string time_between(int64_t from_ns, int64_t to_ns) {
  return format_duration(
      std::chrono::nanoseconds(std::max<int64_t>(time_difference(to_ns, from_ns), 0)));
}

std::string spans_text(const ActivityView& view, int64_t now_ns) {
  const ThreadView* const main = view.main();
  if (view.closed_ns)
    return cat("has left its function ", time_between(*view.closed_ns, now_ns), " ago");
  if (main == nullptr)
    return "in nothing that muster knows of";
  const int64_t begin_ns = main->spans.back().begin_ns;
  return cat("in ", main->span_names(), " for ", time_between(begin_ns, now_ns));
}

// Groups other than the world are named.
std::string last_call_text(const ActivityView& view, int64_t now_ns) {
  if (view.calls.empty())
    return "no collective yet";
  const CallView& call = view.calls.back();
  const auto which = cat(call.text(), call.group == "world" ? "" : cat(" of ", call.group));
  if (!call.end_ns)
    return cat("under way: ", which, " for ", time_between(call.begin_ns, now_ns));
  const char* const how = call.state == CallState::failed ? "failed" : "ended";
  return cat("last ", which, ", ", how, " ", time_between(*call.end_ns, now_ns), " ago");
}

// Nothing is said of a process that lives or cannot be seen.
const char* process_text(ProcessState state) {
  switch (state) {
    case ProcessState::gone:
      return "; its process has ended";
    case ProcessState::stopped:
      return "; its process is stopped (SIGSTOP, or a debugger)";
    default:
      return "";
  }
}

// Describes late ranks in a thread: one wait's at a time, and none once the process ends.
class LateTeller {
 public:
  static LateTeller& instance() {
    static LateTeller& teller = *new LateTeller;  // never destroyed: threads may still wait
    return teller;
  }

  void begin(const Ints& late) {
    const Lock lock(mutex_);
    if (busy_ || ended_)
      return;
    if (thread_.joinable())
      thread_.join();
    busy_ = true;
    const BlockedSignals blocked;  // in the thread, for good
    thread_ = std::thread([this, late] {
      tell_all(late);
      const Lock done(mutex_);
      busy_ = false;
    });
  }

 private:
  LateTeller() {
    std::atexit([] { instance().end(); });
  }

  void end() {
    {
      const Lock lock(mutex_);
      ended_ = true;
    }
    if (thread_.joinable())
      thread_.join();
  }

  // The ranks that are on this host are told of here, the others where they are.
  static void tell_all(const Ints& late) {
    const Activity* const own = Activity::get();
    if (own == nullptr)
      return;
    const std::filesystem::path path = own->path();  // RUN_DIR/activity/ATTEMPT/RANK
    const std::filesystem::path folder = path.parent_path();
    Ints elsewhere;
    for (size_t i = 0; i < std::min(late.size(), kMostDescribed); ++i) {
      if (is_here(folder / cat(late[i])))
        tell(folder / cat(late[i]));
      else
        elsewhere.push_back(late[i]);
    }
    const LateRequest request{.attempt = number_of(folder), .ranks = elsewhere};
    const std::string run_dir = folder.parent_path().parent_path();
    if (!elsewhere.empty() && !ask_to_describe(run_dir, number_of(path), request)) {
      for (const int rank : elsewhere)
        tell(folder / cat(rank));  // a folder that the hosts share
    }
    if (late.size() > kMostDescribed)
      warn(cat("and ", late.size() - kMostDescribed, " more ranks are late"));
  }

  static int number_of(const std::filesystem::path& path) {
    return parse_count(file_name(path)).value_or(0);
  }

  static bool is_here(const std::filesystem::path& activity) {
    try {
      return process_state(read_activity(activity.string())) != ProcessState::unknown;
    } catch (const Error&) {
      return false;
    }
  }

  static void tell(const std::filesystem::path& activity) {
    try {
      warn(describe_late_rank(activity.string()));
    } catch (const Error&) {
      return;
    }
  }

  std::mutex mutex_;
  std::thread thread_;
  bool busy_ = false;
  bool ended_ = false;
};

std::atomic<bool> g_names_are_the_jobs = false;

// A group of all ranks has the job's numbers in any case.
void tell_of_ranks(const Ints& late, const Ints& came) {
  const Activity* const own = Activity::get();
  if (own == nullptr)
    return;
  const bool is_world = std::cmp_equal(late.size() + came.size(), own->world_size());
  if (g_names_are_the_jobs || is_world)
    LateTeller::instance().begin(late);
}

}  // namespace

std::string describe_rank(const ActivityView& view, ProcessState state, int64_t now_ns) {
  return cat("rank ",
             view.rank,
             ": ",
             spans_text(view, now_ns),
             "; ",
             last_call_text(view, now_ns),
             process_text(state));
}

std::string describe_late_rank(const std::string& activity_path) {
  const ActivityView view = read_activity(activity_path);
  const ProcessState state = process_state(view);
  // Another host's monotonic clock is another one, but both hosts know the time of day.
  const int64_t now =
      state == ProcessState::unknown
          ? time_difference(nanoseconds_of(CLOCK_REALTIME), view.unix_minus_monotonic_ns)
          : activity_now();
  const auto stack = stack_of_rank(view, activity_path, kPatienceForStack);
  return cat(describe_rank(view, state, now),
             stack.empty() ? "" : cat("; its stack, innermost call first:\n", stack));
}

void describe_late_ranks(bool names_are_the_jobs) {
  g_names_are_the_jobs = names_are_the_jobs;
  set_late_detail(tell_of_ranks);
}

}  // namespace muster
