// Ranks as threads of the test's process, over an in-process store: fast, and every rank's failure
// comes out.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "muster/comm/init.h"

namespace muster::testing {

// What each rank threw, by rank; null where it returned.
inline std::vector<std::exception_ptr> failures_of_ranks(
    int world_size,
    const std::function<void(ProcessGroup&)>& body,
    const InitOptions& options = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  threads.reserve(failures.size());
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ProcessGroup group = init_process_group(store, rank, world_size, options);
        body(group);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  return failures;
}

// Runs `body` as every rank of a group and shuts the group down; throws the first rank's failure.
inline void run_ranks(int world_size,
                      const std::function<void(ProcessGroup&)>& body,
                      const InitOptions& options = {}) {
  const auto failures = failures_of_ranks(
      world_size,
      [&](ProcessGroup& group) {
        body(group);
        group.shutdown();
      },
      options);
  for (const auto& failure : failures) {
    if (failure)
      std::rethrow_exception(failure);
  }
}

inline std::string message_of(const std::exception_ptr& failure) {
  if (!failure)
    return "";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace muster::testing
