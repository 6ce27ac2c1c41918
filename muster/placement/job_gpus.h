// Which GPUs each host has for a job: those that can be used there, and those of them that --gpus
// selects. Says why a host has none. A private header of the planner.
#pragma once

#include <string>
#include <vector>

#include "muster/placement/checked_request.h"
#include "muster/placement/plan_notes.h"
#include "muster/placement/request.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

struct HostGpus {
  UsableGpus usable{};
  std::vector<UsableGpu> selected{};
  bool named = true;  // --gpus means this host, by its name or because it names none
};

// `host_at` is everywhere a position among the job's hosts.
class JobGpus {
 public:
  // All three must outlive it.
  JobGpus(const Request& request, const JobHosts& hosts, PlanNotes& notes)
      : request_(request), hosts_(hosts), notes_(notes) {}

  // Applies mask, health and selection to every host; true when any host has a GPU to use.
  // Throws: SelectionError; unavailable when GPUs are there or asked for, and none can be used.
  bool find();

  // The rest is for after `find`.
  const HostGpus& on(size_t host_at) const { return gpus_[host_at]; }
  // Whether a job that says nothing of devices would be thought to run on GPUs there.
  bool are_expected_on(size_t host_at) const;
  // Says which step left no GPU there: selection, health, masks, or the machine.
  std::string why_none_on(size_t host_at) const;

 private:
  HostGpus gpus_of(const JobHost& job_host);
  void check_has_gpus(size_t host_at, bool any_usable) const;
  void note_left_out(const Host& host, const UsableGpus& usable);
  [[noreturn]] void fail_with_sick_gpus() const;
  [[noreturn]] void fail_without_gpu(const Host& host, const HostGpus& gpus) const;
  [[noreturn]] void fail_with_nothing_left() const;
  std::string unknown_memory() const;

  const Request& request_;
  const JobHosts& hosts_;
  PlanNotes& notes_;
  std::vector<HostGpus> gpus_;  // of each host
};

}  // namespace muster
