// How many operations a second the rendezvous store serves, with few clients and with thousands:
// muster's, with every frame authenticated, and PyTorch's TCPStore beside it, without. All on
// loopback, in one run, taking turns.
//
//     store_bench [--clients 64,1024,8192] [--seconds 1] [--rounds 2]
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/store/tcp_server.h"
#include "muster/store/tcp_store.h"
#ifdef MUSTER_BENCH_LIBTORCH
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

namespace {

using Add = std::function<void(const std::string& key)>;

constexpr int kThreads = 4;  // that take the clients' turns

// Additions a second by that many clients, each on a key of its own.
double measure(const std::vector<Add>& clients, double seconds) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> done{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  const auto start = muster::Clock::now();
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      int64_t mine = 0;
      for (size_t i = thread; !stop; i = i + kThreads < clients.size() ? i + kThreads : thread) {
        clients[i](muster::cat("alive/", i));
        ++mine;
      }
      done += mine;
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  return static_cast<double>(done) / muster::seconds_since(start);
}

double measure_muster(size_t count, double seconds) {
  const auto secret = muster::Secret::make();
  const muster::TcpServer server({.secret = secret});
  std::vector<std::unique_ptr<muster::TcpStore>> stores;
  std::vector<Add> clients;
  for (size_t i = 0; i < count; ++i) {
    stores.push_back(std::make_unique<muster::TcpStore>(
        muster::TcpStoreOptions{.endpoint = server.endpoint(), .secret = secret}));
    clients.emplace_back(
        [store = stores.back().get()](const std::string& key) { store->add(key, 1); });
  }
  return measure(clients, seconds);
}

#ifdef MUSTER_BENCH_LIBTORCH
double measure_tcp_store(size_t count, double seconds) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  std::vector<c10::intrusive_ptr<c10d::TCPStore>> stores;
  stores.push_back(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
  options.isServer = false;
  options.port = stores[0]->getPort();
  std::vector<Add> clients;
  for (size_t i = 0; i < count; ++i) {
    stores.push_back(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
    clients.emplace_back(
        [store = stores.back().get()](const std::string& key) { store->add(key, 1); });
  }
  return measure(clients, seconds);
}
#endif

void raise_open_files() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Operations a second of the rendezvous store");
  std::vector<size_t> counts = {64, 1024, 8192};
  double seconds = 1;
  int rounds = 2;
  size_t most_of_tcp_store = 64;
  app.add_option("--clients", counts, "How many clients at once")->delimiter(',');
  app.add_option("--seconds", seconds, "For each measurement");
  app.add_option("--rounds", rounds, "The best of these counts");
  app.add_option(
      "--most-of-tcp-store", most_of_tcp_store, "Its clients connect in tenths of a second each");
  CLI11_PARSE(app, argc, argv);
  raise_open_files();
  std::printf("%10s %16s %16s %8s\n", "clients", "muster add/s", "TCPStore add/s", "ratio");
  double ratio = 0;
  for (const size_t count : counts) {
    double ours = 0;
    double theirs = 0;
    for (int round = 0; round < rounds; ++round) {
      ours = std::max(ours, measure_muster(count, seconds));
#ifdef MUSTER_BENCH_LIBTORCH
      if (count <= most_of_tcp_store)
        theirs = std::max(theirs, measure_tcp_store(count, seconds));
#endif
    }
    if (theirs > 0)
      ratio = ours / theirs;
    if (theirs > 0) {
      std::printf("%10zu %16.0f %16.0f %8.2f\n", count, ours, theirs, ratio);
    } else {
      std::printf("%10zu %16.0f %16s %8s\n", count, ours, "not measured", "-");
    }
    std::fflush(stdout);
  }
  if (ratio > 0)
    std::printf("ours ÷ TCPStore with the most clients that it was measured with: %.2f (bar: 1)\n",
                ratio);
  return 0;
}
