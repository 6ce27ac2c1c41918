// A job's ranks as they are now: one sample after the other of what `muster top` shows. Reads
// activity files, /proc, the GPUs' driver and what other hosts have answered; changes nothing.
// top_text.h makes the text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/run_record.h"
#include "muster/report/rank_usage.h"
#include "muster/trace/read_activity.h"

namespace muster {

// States of a rank: "running", "stopped" (by SIGSTOP), "ended", "failed", "ended by muster", "gone"
// (its process has, and the launcher has not told how), "killed" (with its launcher), "elsewhere"
// (on another host, which has not answered yet), "not seen".
struct TopRank {
  int rank = 0;
  std::string host{};
  std::string device{};  // "GPU 3", "cpu:0"
  std::string state{};
  int pid = 0;  // on this host; 0: not seen here
  std::optional<int> gpu_percent{};
  std::optional<uint64_t> gpu_used_bytes{};
  std::optional<uint64_t> gpu_total_bytes{};
  std::optional<double> cpu_percent{};  // 100: one core
  std::optional<uint64_t> memory_bytes{};
  std::optional<int64_t> step{};
  // Since the last sample that saw a step; before one has, since the start.
  std::optional<double> seconds_per_step{};
  std::optional<double> samples_per_second{};
  std::optional<double> loss{};
  std::string doing{};  // "step > backward"
  std::optional<double> doing_seconds{};
  std::string last_call{};
  std::optional<double> last_call_seconds{};  // since its end
};
using TopRanks = std::vector<TopRank>;

struct TopView {
  std::string title{};
  std::string run_dir{};
  std::string id{};
  bool running = false;
  std::string outcome{};  // of one that does not run
  double seconds = 0;     // since the launch, or that it took
  int attempt = 0;
  TopRanks ranks{};
  bool has_whole_plan = true;  // a host that is not the first reads it when asked
  Strings unseen_hosts{};      // nothing is known here of their ranks
  Strings problems{};

  bool hosts_have_answered() const;  // all of them
};

class TopSampler {
 public:
  // `job`: nothing for a run that has ended, or is another host's.
  TopSampler(std::string run_dir, std::optional<JobNote> job);

  // this_one: without what other hosts have answered.
  enum class Hosts { all, this_one };
  TopView sample(Hosts hosts = Hosts::all);

 private:
  // The last sample of a rank: speeds are differences to it.
  struct Before {
    ActivityView activity;
    TimePoint at;
    double cpu_seconds = 0;
    int pid = 0;
    std::optional<double> seconds_per_step;
    std::optional<double> samples_per_second;
  };

  // The ranks whose activity files say that they run on this host. A rank that went on in place has
  // another number than the one its process was started with.
  struct LiveRanks {
    std::map<int64_t, int> by_pid;
    IntSet numbers;
  };

  void add_job(TopView& view, const std::optional<LaunchRecord>& launch, int64_t moment) const;
  LiveRanks add_activities(TopView& view, int64_t moment);
  IntSet add_processes(TopView& view, const LiveRanks& live);
  void add_activity(TopRank& rank, const ActivityView& view, int64_t now_ns);
  static void note_speed(Before& before, const ActivityView& view);
  void add_process(TopRank& rank, const RankUsage& process, TimePoint now);

  std::string run_dir_;
  std::optional<JobNote> job_;
  std::map<int, Before> before_;  // by rank
};

}  // namespace muster
