// How many operations a second the rendezvous store serves, with few clients and with thousands:
// muster's, with every frame authenticated, and PyTorch's TCPStore beside it, without. Bare sockets
// that carry messages of the same sizes show what the kernel alone gives. All on loopback, in one
// run, taking turns.
//
//     store_bench [--clients 64,1024,8192] [--seconds 1] [--rounds 3]
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/store/frame.h"
#include "muster/store/socket.h"
#include "muster/store/tcp_server.h"
#include "muster/store/tcp_store.h"
#include "muster/store/wire.h"
#ifdef MUSTER_BENCH_LIBTORCH
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

namespace {

using Add = std::function<void(const std::string& key)>;

constexpr int kThreads = 4;  // that take the clients' turns

double processor_seconds() {
  rusage used = {};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Speed {
  double per_second = 0;            // by the clock
  double per_processor_second = 0;  // hardly changes with what else runs on the machine

  void keep_best(const Speed& other) {
    per_second = std::max(per_second, other.per_second);
    per_processor_second = std::max(per_processor_second, other.per_processor_second);
  }
};

// Additions by that many clients, each on a key of its own.
Speed measure(const std::vector<Add>& clients, double seconds) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> done{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  const auto start = muster::Clock::now();
  const double used = processor_seconds();
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
  const auto count = static_cast<double>(done);
  return {.per_second = count / muster::seconds_since(start),
          .per_processor_second = count / (processor_seconds() - used)};
}

Speed measure_muster(size_t count, double seconds) {
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
Speed measure_tcp_store(size_t count, double seconds) {
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

// A frame of the store with this message is as long.
template <class Message>
size_t frame_bytes(const Message& message) {
  std::string body;
  muster::encode(message, body);
  return muster::kFrameSizeBytes + body.size() + muster::kFrameMacBytes;
}

const size_t kRequestBytes = frame_bytes(muster::StoreRequest{
    .operation = muster::StoreRequest::Operation::add, .keys = {"alive/1234"}, .number = 1});
const size_t kReplyBytes = frame_bytes(muster::StoreReply{.number = 1});

void must(bool good, const char* what) {
  if (!good)
    muster::fail_errno(what, errno);
}

void send_bytes(int fd, size_t size) {
  static const std::string zeros(4096, '\0');
  must(::send(fd, zeros.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size),
       "bare sockets: cannot send");
}

void receive_bytes(int fd, size_t size) {
  std::array<char, 4096> bytes;
  must(::recv(fd, bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size),
       "bare sockets: cannot receive");
}

// Connections over loopback, and one thread with one epoll that answers each request on them, as
// the store's does.
class BareServer {
 public:
  explicit BareServer(size_t count) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    const muster::Deadline deadline(std::chrono::minutes(1));
    muster::Endpoint endpoint;
    const muster::Fd listener = muster::listen_on(endpoint, deadline);
    for (size_t i = 0; i < count; ++i) {
      clients_.push_back(muster::connect_to(endpoint, muster::IfRefused::fail, deadline));
      served_.emplace_back(::accept(listener.get(), nullptr, nullptr));
      must(served_.back().valid(), "bare sockets: cannot accept");
      for (const int fd : {clients_.back().get(), served_.back().get()})
        muster::tune(fd);
      epoll_event event{.events = EPOLLIN, .data = {.fd = served_.back().get()}};
      must(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event.data.fd, &event) == 0,
           "bare sockets: cannot watch");
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~BareServer() {
    stop_ = true;
    thread_.join();
  }

  // One request, and its answer.
  void ask(size_t client) const {
    const int fd = clients_[client].get();
    send_bytes(fd, kRequestBytes);
    receive_bytes(fd, kReplyBytes);
  }

 private:
  void serve() {
    constexpr int kMostEvents = 64;
    constexpr int kMillisecondsToStop = 50;
    std::array<epoll_event, kMostEvents> events;
    while (!stop_) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), kMostEvents, kMillisecondsToStop);
      for (const epoll_event& event : std::span(events).first(std::max(count, 0))) {
        receive_bytes(event.data.fd, kRequestBytes);
        send_bytes(event.data.fd, kReplyBytes);
      }
    }
  }

  muster::Fd epoll_;
  std::vector<muster::Fd> clients_, served_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

Speed measure_bare(size_t count, double seconds) {
  const BareServer server(count);
  std::vector<Add> clients;
  for (size_t i = 0; i < count; ++i)
    clients.emplace_back([&server, i](const std::string&) { server.ask(i); });
  return measure(clients, seconds);
}

void raise_open_files() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// The best of a row's rounds.
struct Row {
  size_t clients = 0;
  Speed ours{}, theirs{}, bare{};
};

void print(const std::vector<Row>& rows) {
  std::printf("%10s %14s %14s %8s %14s %8s\n",
              "clients",
              "muster add/s",
              "TCPStore add/s",
              "ratio",
              "bare sockets/s",
              "ratio");
  for (const Row& row : rows) {
    std::printf("%10zu %14.0f ", row.clients, row.ours.per_second);
    if (row.theirs.per_second > 0)
      std::printf(
          "%14.0f %8.2f ", row.theirs.per_second, row.ours.per_second / row.theirs.per_second);
    else
      std::printf("%14s %8s ", "not measured", "-");
    std::printf("%14.0f %8.2f\n", row.bare.per_second, row.ours.per_second / row.bare.per_second);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Operations a second of the rendezvous store");
  std::vector<size_t> counts = {64, 1024, 8192};
  double seconds = 1;
  int rounds = 3;
  size_t most_of_tcp_store = 64;
  app.add_option("--clients", counts, "How many clients at once")->delimiter(',');
  app.add_option("--seconds", seconds, "For each measurement");
  app.add_option("--rounds", rounds, "The best of these counts");
  app.add_option(
      "--most-of-tcp-store", most_of_tcp_store, "Its clients connect in tenths of a second each");
  CLI11_PARSE(app, argc, argv);
  raise_open_files();
  std::vector<Row> rows;
  for (const size_t count : counts)
    rows.push_back({.clients = count});
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) {
      row.ours.keep_best(measure_muster(row.clients, seconds));
      row.bare.keep_best(measure_bare(row.clients, seconds));
#ifdef MUSTER_BENCH_LIBTORCH
      if (row.clients <= most_of_tcp_store)
        row.theirs.keep_best(measure_tcp_store(row.clients, seconds));
#endif
    }
  }
  print(rows);
  const Row& few = rows.front();
  const Row& many = rows.back();
  if (few.theirs.per_second > 0)
    std::printf("ours ÷ TCPStore with %zu clients: %.2f (bar: 1)\n",
                few.clients,
                few.ours.per_second / few.theirs.per_second);
  const double kept = many.ours.per_processor_second / few.ours.per_processor_second;
  const double bare_kept = many.bare.per_processor_second / few.bare.per_processor_second;
  std::printf(
      "additions in a second of processor time, with %zu clients ÷ with %zu: "
      "muster %.2f, bare sockets %.2f; muster ÷ bare: %.2f (bar: 1)\n",
      many.clients,
      few.clients,
      kept,
      bare_kept,
      kept / bare_kept);
  return 0;
}
