// Ranks as threads that share memory: enough of a process group for Peers.
#pragma once

#include <barrier>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "muster/checkpoint/peers.h"

namespace muster::test {

// Runs `body` on every rank at once; gives what each threw ("" for nothing).
inline std::vector<std::string> on_ranks(int size, const std::function<void(const Peers&)>& body) {
  std::barrier meet(size);
  std::string* shared_bytes = nullptr;
  at::Tensor shared_tensor;
  std::vector<std::string> thrown(static_cast<size_t>(size));
  const auto rank_main = [&](int rank) {
    const Peers peers(
        rank,
        size,
        [&, rank](std::string& bytes, int root) {
          if (rank == root)
            shared_bytes = &bytes;
          meet.arrive_and_wait();
          if (rank != root)
            bytes = *shared_bytes;
          meet.arrive_and_wait();
        },
        [&, rank](at::Tensor tensor, int root) {
          if (rank == root)
            shared_tensor = tensor;
          meet.arrive_and_wait();
          if (rank != root)
            tensor.copy_(shared_tensor);
          meet.arrive_and_wait();
        });
    try {
      body(peers);
    } catch (const std::exception& error) {
      thrown[static_cast<size_t>(rank)] = error.what();
    }
  };
  std::vector<std::jthread> threads;
  threads.reserve(thrown.size());
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back(rank_main, rank);
  threads.clear();
  return thrown;
}

}  // namespace muster::test
