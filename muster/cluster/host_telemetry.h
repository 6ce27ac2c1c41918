// What a job's first host learns of the ranks on the other hosts: how they do while somebody watches (`muster
// top`), in a thread of its own; and what they have written of their activity and events (`--trace`), when
// they have ended. All goes through the job's store, so that the hosts need no common folder.
//
//   muster top  touches RUN_DIR/hosts/asked        reads RUN_DIR/hosts/<n>.sample
//   first host  sees that, asks (store: ask/ID)    writes the samples that come (store: sample/ID)
//   host ID     samples its ranks, sets sample/ID
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "muster/placement/plan.h"
#include "muster/store/store.h"

namespace muster {

// What these ranks of this host do now, as bytes for `muster top` on the first host.
using RankSampler = std::function<std::string(RankRange)>;

struct HostTelemetryOptions {
  std::string host = {};                // this host's id
  std::vector<std::string> hosts = {};  // ids of all, the first host's first
  RankRange ranks = {};                 // of this host
  std::string run_dir = {};
  RankSampler sampler = {};
};

class HostTelemetry {
 public:
  HostTelemetry(std::shared_ptr<Store> store, HostTelemetryOptions options);
  HostTelemetry(const HostTelemetry&) = delete;
  HostTelemetry& operator=(const HostTelemetry&) = delete;
  ~HostTelemetry();

  // On the other hosts, when all ranks of this one have ended: leaves in the store what they have written.
  // Where the first host has the same folder, nothing. What cannot be left is no error. Blocking: for the
  // store's answer.
  void leave(int attempt);

  // On the first host, when the others have left theirs: writes it into RUN_DIR/hosts/activity and
  // RUN_DIR/trace. Blocking: at most about 5 s; what has not come by then stays away, and that is said.
  void collect();

 private:
  bool is_first() const { return options_.hosts.front() == options_.host; }
  void run();
  void watch();   // the first host's
  void answer();  // the others'
  void ask_and_write();
  void leave_as(const std::string& key, const std::string& bytes);
  bool shares_folder(int attempt) const;
  bool pause(std::chrono::milliseconds length);  // false: it is to end

  std::shared_ptr<Store> store_;
  HostTelemetryOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace muster
