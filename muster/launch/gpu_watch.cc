// A GPU has gone bad if the driver says something of it that it did not say when the job began, or
// if the kernel's log has an error of its hardware since then. The driver is asked in a thread that
// can be left behind: with a broken GPU it may never answer.
#include "muster/launch/gpu_watch.h"

#include <chrono>
#include <ctime>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/probe.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kDriverAnswers{30};

// The time as the kernel stamps its log.
int64_t kernel_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

std::set<GpuUuid> planned_gpus(const Plan& plan, int host_index) {
  return mapped_to<std::set<GpuUuid>>(lease_wishes(plan, host_index), &LeaseWish::gpu);
}

bool has_device(const Gpu& gpu, const std::set<GpuUuid>& uuids) {
  return uuids.contains(gpu.uuid) ||
         any_of(gpu.mig, [&](const MigInstance& mig) { return uuids.contains(mig.uuid); });
}

// The first error of this GPU's hardware in the kernel's log; empty: there is none.
std::string what_of_log(const Gpu& gpu, const std::vector<XidError>& xids) {
  for (const XidError& error : xids) {
    if (is_of_hardware(error) && error.pci == gpu.pci)
      return cat("Xid ", error.number, " in the kernel's log (", error.text, ")");
  }
  return "";
}

// Says what has become bad of a GPU, the most telling first; empty: nothing. `now` is nullptr for a
// GPU that the driver no longer lists, and `note` then says why.
std::string what_is_bad(const Gpu& before,
                        const Gpu* now,
                        const std::string& note,
                        const std::vector<XidError>& xids) {
  if (now == nullptr)
    return cat("the driver does not list it any more", framed(" (", printable(note), ")"));
  const uint64_t errors = now->ecc_uncorrected_errors.value_or(0);
  const uint64_t had = before.ecc_uncorrected_errors.value_or(0);
  if (errors > had)
    return cat(plural(errors - had, "uncorrected memory error"), " since the job began");
  if (now->health != kHealthy && before.health == kHealthy)
    return now->health;
  if (now->repair_pending && !before.repair_pending)
    return "rows or pages of its memory are to be replaced, which takes a reset of the GPU";
  return what_of_log(before, xids);
}

// This host as the driver tells it now; without GPUs, and with a note, if the driver does not
// answer, or no thread can be had to ask it.
Host host_now() {
  const auto answer = std::make_shared<std::promise<Host>>();
  std::future<Host> host = answer->get_future();
  std::optional<BlockedSignals> blocked(std::in_place);  // in the thread, for good
  try {
    std::thread([answer] {
      try {
        answer->set_value(probe_this_machine().hosts.at(0));
      } catch (...) {
        answer->set_exception(std::current_exception());
      }
    }).detach();
  } catch (const std::system_error& error) {
    return {.gpu_note = cat("the driver could not be asked (a thread: ", error.what(), ")")};
  }
  blocked.reset();
  if (host.wait_for(kDriverAnswers) == std::future_status::ready)
    return host.get();
  return {.gpu_note = cat("the driver has not answered for ", kDriverAnswers.count(), " s")};
}

// The GPU that `gpu` is now; nullptr: the driver does not list it. A GPU that is lost may not even
// say its UUID, and is then known by its place.
const Gpu* same_gpu(const Gpu& gpu, const std::vector<Gpu>& now) {
  if (const Gpu* const same = element_with(now, gpu.uuid, &Gpu::uuid))
    return same;
  return element_where(
      now, [&](const Gpu& other) { return other.uuid.value.empty() && other.index == gpu.index; });
}

}  // namespace

BadGpus gpus_gone_bad(const Plan& plan,
                      int host_index,
                      const Host& before,
                      const Host& now,
                      const std::vector<XidError>& xids) {
  BadGpus bad;
  const auto planned = planned_gpus(plan, host_index);
  for (const Gpu& gpu : before.gpus) {
    if (!has_device(gpu, planned))
      continue;
    std::string what = what_is_bad(gpu, same_gpu(gpu, now.gpus), now.gpu_note, xids);
    if (!what.empty())
      bad.push_back({.index = gpu.index, .uuid = gpu.uuid, .what = std::move(what)});
  }
  return bad;
}

std::string describe(const BadGpus& bad) {
  const auto each = mapped(bad, [](const BadGpu& gpu) {
    return cat("GPU ", gpu.index.value, " (", printable(gpu.uuid.value), "): ", gpu.what);
  });
  return join(each, "; ");
}

BusyGpus reasons_of(const BadGpus& bad) {
  BusyGpus reasons;
  for (const BadGpu& gpu : bad)
    reasons.emplace(gpu.uuid, gpu.what);
  return reasons;
}

GpuWatch::GpuWatch(Host host)
    : before_(std::move(host)), since_microseconds_(kernel_microseconds()) {}

BadGpus GpuWatch::look(const Plan& plan, int host_index) const {
  if (planned_gpus(plan, host_index).empty())
    return {};
  return gpus_gone_bad(plan, host_index, before_, host_now(), read_xid_errors(since_microseconds_));
}

}  // namespace muster
