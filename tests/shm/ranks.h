// Ranks of a team as threads of this process, and as processes of their own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/shm/team.h"

namespace muster::shm {

// A store for the threads of one process.
class ThreadExchange {
 public:
  Exchange exchange() {
    return {.set =
                [this](const std::string& key, const std::string& value) {
                  const std::lock_guard lock(mutex_);
                  values_[key] = value;
                  changed_.notify_all();
                },
            .get =
                [this](const std::string& key) {
                  std::unique_lock lock(mutex_);
                  const bool there = changed_.wait_for(
                      lock, std::chrono::seconds(20), [&] { return values_.contains(key); });
                  if (!there)
                    throw Error(ErrorCode::timeout, "no " + key);
                  return values_[key];
                }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Runs `body` once a rank, each with its team. Rethrows the first rank's exception.
inline void run_ranks(int size,
                      const std::function<void(Team&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(20),
                      const RankNames& names = {}) {
  ThreadExchange store;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Team team(store.exchange(), rank, size, timeout, names);
        body(team);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  for (const auto& error : errors)
    if (error)
      std::rethrow_exception(error);
}

}  // namespace muster::shm
