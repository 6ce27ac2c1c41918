// A process that does not take a request would end of it, so it is looked at again, less and less
// often. A process that ends meanwhile is not among those that tell() is given, and so is dropped.
#include "muster/supervise/requests.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/process_status.h"
#include "muster/base/strings.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

constexpr milliseconds kFirstLook{200};
constexpr milliseconds kLookAtLeastEvery{5'000};

}  // namespace

void Requests::add(int signal) {
  left_[signal] = std::nullopt;
  look_every_ = kFirstLook;
}

void Requests::tell(const Pids& pids) {
  next_look_ = Clock::now() + look_every_;
  look_every_ = std::min(2 * look_every_, kLookAtLeastEvery);
  for (auto& [signal, left] : left_) {
    if (!left && pids.empty())
      continue;
    const Pids before = left.value_or(pids);
    left.emplace();
    for (const pid_t pid : pids) {
      if (!before.contains(pid))
        continue;
      if (catches_signal(pid, signal) || awaits_signal(pid, signal))
        ::kill(pid, signal);
      else
        left->insert(pid);
    }
  }
  std::erase_if(left_, [](const auto& entry) { return entry.second && entry.second->empty(); });
}

void Requests::say_if_kept(int signal) const {
  if (left_.contains(signal))
    log_info(signal_name(signal), " is kept for each process until it runs and catches it");
}

void Requests::forget(pid_t pid) {
  for (auto& [signal, left] : left_) {
    if (left)
      left->erase(pid);
  }
}

void Requests::forget_told() {
  std::erase_if(left_, [](const auto& entry) { return entry.second.has_value(); });
}

}  // namespace muster
