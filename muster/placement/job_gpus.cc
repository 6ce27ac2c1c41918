// Each host is looked at, also those that --gpus does not mean, since errors tell what they have.
// An error comes last: only when all hosts are known is it clear that none has a GPU for the job.
#include "muster/placement/job_gpus.h"

#include <algorithm>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"

namespace muster {
namespace {

bool has_sick(const HostGpus& gpus) {
  return !gpus.usable.sick.empty();
}

bool has_usable(const HostGpus& gpus) {
  return gpus.named && !gpus.usable.gpus.empty();
}

bool has_selected(const HostGpus& gpus) {
  return !gpus.selected.empty();
}

}  // namespace

bool JobGpus::find() {
  const auto hosts = mapped(hosts_, &JobHost::host);
  check_selection_hosts(request_.gpus, hosts);
  gpus_ = mapped(hosts_, [&](const JobHost& host) { return gpus_of(host); });
  const bool any_usable = any_of(gpus_, has_usable);
  for (const size_t i : indices_of(gpus_))
    check_has_gpus(i, any_usable);
  if (any_of(gpus_, has_selected))
    return true;
  if (any_usable)
    fail_with_nothing_left();
  if (any_of(gpus_, has_sick))
    fail_with_sick_gpus();
  return false;
}

HostGpus JobGpus::gpus_of(const JobHost& job_host) {
  const Host& host = *job_host.host;
  HostGpus gpus{.usable = usable_gpus(host, job_host.masks)};
  gpus.named = part_for(request_.gpus, host) != nullptr;
  if (!gpus.named)
    return gpus;
  note_left_out(host, gpus.usable);
  if (!gpus.usable.gpus.empty())
    gpus.selected = select_gpus(request_.gpus, host, gpus.usable, request_.scores);
  return gpus;
}

// A flag that needs GPUs leaves out a host without any, as a plan without flags does. It is an
// error where ranks are asked for on this very host, or where no other host has a GPU for the job.
void JobGpus::check_has_gpus(size_t host_at, bool any_usable) const {
  const JobHost& job_host = hosts_[host_at];
  const HostGpus& gpus = gpus_[host_at];
  const bool lacks = gpus.named && gpus.usable.gpus.empty();
  if (!lacks || flag_that_needs_gpus(request_).empty())
    return;
  const bool is_asked_for =
      job_host.nproc || request_.gpu_only || !part_for(request_.gpus, *job_host.host)->host.empty();
  if (is_asked_for || !any_usable)
    fail_without_gpu(*job_host.host, gpus);
}

// Tells of the GPUs that the mask hides, and of those that are broken.
void JobGpus::note_left_out(const Host& host, const UsableGpus& usable) {
  if (!usable.mask_note.empty())
    notes_.add(host, usable.mask_note, usable.mask_is_wrong);
  for (const auto& sick : usable.sick)
    notes_.warn(host, cat("left out ", sick));
}

bool JobGpus::are_expected_on(size_t host_at) const {
  return hosts_[host_at].host->gpus_expected || gpus_[host_at].usable.mask_is_wrong;
}

std::string JobGpus::why_none_on(size_t host_at) const {
  const Host& host = *hosts_[host_at].host;
  const UsableGpus& usable = gpus_[host_at].usable;
  if (!usable.gpus.empty())
    return cat("none fits --gpus ", printable(request_.gpus.text));
  if (!usable.sick.empty())
    return "all unhealthy";
  if (host.gpus.empty())
    return text_or(host.gpu_note, "none found");
  const bool is_amd = host.gpus[0].vendor == Vendor::amd;
  return is_amd ? "all hidden by ROCm's variables" : "all hidden by CUDA_VISIBLE_DEVICES";
}

// A machine whose GPUs are all broken is to be repaired, not quietly trained on with its CPU.
void JobGpus::fail_with_sick_gpus() const {
  const auto sick = std::ranges::find_if(gpus_, has_sick);
  fail_without_gpu(*hosts_[sick - gpus_.begin()].host, *sick);
}

// The error begins with the flag that asks for GPUs, or with the plan when none does.
void JobGpus::fail_without_gpu(const Host& host, const HostGpus& gpus) const {
  const auto flag = flag_that_needs_gpus(request_);
  const auto operation = text_or(flag, "plan");
  throw unavailable(operation,
                    ": expected a GPU that can be used, got none: ",
                    describe(host, gpus.usable),
                    "; --nproc-per-node cpu runs on CPU slots");
}

// The devices that there are tell the user what the selection could have been. The first host
// with GPUs that --gpus means stands for all of them.
void JobGpus::fail_with_nothing_left() const {
  const auto first = std::ranges::find_if(gpus_, has_usable);
  throw unavailable(printable(cat("--gpus ",
                                  request_.gpus.text,
                                  ": expected at least one GPU, got none that fits: ",
                                  describe(*hosts_[first - gpus_.begin()].host, first->usable),
                                  unknown_memory(),
                                  "; `muster devices` shows them all")));
}

// Names the GPUs that a selection by memory cannot judge.
std::string JobGpus::unknown_memory() const {
  using Kind = SelectionItem::Kind;
  if (!request_.gpus.has({Kind::memory, Kind::free_memory}))
    return "";
  Strings labels;
  for (const size_t i : indices_of(gpus_)) {
    for (const UsableGpu& device : gpus_[i].usable.gpus) {
      if (!knows_memory(*hosts_[i].host, device))
        labels.push_back(label_of(*hosts_[i].host, device));
    }
  }
  constexpr size_t kMaxNamed = 8;
  if (labels.empty())
    return "";
  return cat("; memory not known of ", join_first(std::move(labels), ", ", kMaxNamed));
}

}  // namespace muster
