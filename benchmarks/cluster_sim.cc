// What the coordinator of a job costs with as many hosts as nobody has here: the real coordinator
// and its real messages, on a virtual clock and a modelled network. The processor time is measured;
// the time on the wire is computed.
//
//   start   all hosts join within some seconds; until every host has its order to start
//   death   one host is lost; until all ranks have ended, and until all have started again
//   end     all ranks end well; until every host has left
//   churn   a host leaves and another joins, again and again; what the logs keep
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/invented_hosts.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/messages.h"
#include "muster/placement/planner.h"

namespace {

using muster::cat;
using muster::Order;
using muster::Report;

struct Options {
  std::vector<int> hosts = {100, 1'000, 10'000};
  double latency = 100e-6;        // seconds, one way
  double slow_latency = 20e-3;    // of one host in a hundred
  double bytes_per_second = 1.25e9;  // 10 Gbit/s, of the host that coordinates
  double loss = 1e-4;             // of messages; each comes 200 ms later
  double join_seconds = 5;        // in which all hosts come
  double end_seconds = 0.5;       // that ranks take to end, at most
  int churn = 60;                 // hosts that leave, and hosts that come
  bool json = false;
};

constexpr double kResent = 0.2;  // seconds until a lost message is sent again

double thread_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Everything that happens, in the order of the virtual time.
class Events {
 public:
  void at(double time, std::function<void()> action) {
    queue_.push({time, next_++, std::move(action)});
  }
  double now() const { return now_; }

  // Runs until nothing is left to happen.
  void run() {
    while (!queue_.empty()) {
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.time;
      event.action();
    }
  }

 private:
  struct Event {
    double time;
    int64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::pair(time, number) > std::pair(other.time, other.number);
    }
  };
  std::priority_queue<Event> queue_;
  int64_t next_ = 0;
  double now_ = 0;
};

// One direction of the coordinator's link: messages leave one after another.
class Link {
 public:
  explicit Link(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When the last byte of a message has left that is ready at `time`.
  double send(double time, size_t bytes) {
    free_ = std::max(free_, time) + static_cast<double>(bytes) / bytes_per_second_;
    bytes_ += static_cast<double>(bytes);
    ++messages_;
    return free_;
  }
  double bytes() const { return bytes_; }
  int64_t messages() const { return messages_; }

 private:
  double bytes_per_second_;
  double free_ = 0;
  double bytes_ = 0;
  int64_t messages_ = 0;
};

// What one part of a job took.
struct Phase {
  std::string name;
  double seconds = 0;    // virtual, until the last host has what it waits for
  double processor = 0;  // measured, of the coordinator
  double bytes = 0;      // in and out of the coordinator, a host
  double messages = 0;   // a host
};

class Simulation {
 public:
  Simulation(const Options& options, int hosts)
      : options_(options),
        num_hosts_(hosts),
        random_(1),
        in_(options.bytes_per_second),
        out_(options.bytes_per_second),
        coordinator_(rules(hosts),
                     plan_for,
                     [](const std::string&) {},
                     muster::Clock::time_point{}) {}

  Phase start() {
    for (int host = 0; host < num_hosts_; ++host)
      join(host, uniform(options_.join_seconds));
    const double all_came = options_.join_seconds;
    Phase phase = run("start");
    phase.seconds = last_started_ - all_came;
    return phase;
  }

  // The last host is lost, and its replacement is there at once.
  Phase death_until_stopped() {
    const double begin = events_.now();
    const std::string gone = id_of(num_hosts_ - 1);
    running_.erase(std::ranges::find(running_, gone));
    ends_after_stop_ = true;
    tell({.kind = Report::Kind::lost, .from = gone}, begin);
    Phase phase = run("death, all ranks ended");
    phase.seconds = last_ended_ - begin;
    return phase;
  }

  Phase started_again() {
    const double begin = events_.now();
    join(num_hosts_, begin);
    Phase phase = run("all started again");
    phase.seconds = last_started_ - begin;
    return phase;
  }

  Phase end() {
    const double begin = events_.now();
    for (const std::string& id : running_)
      tell({.kind = Report::Kind::ended, .from = id, .round = round_}, begin);
    Phase phase = run("end, every host has left");
    phase.seconds = last_left_ - begin;
    return phase;
  }

  double log_bytes() const { return log_bytes_; }

 private:
  static muster::CoordinatorRules rules(int hosts) {
    return {.min_hosts = hosts, .max_hosts = hosts, .max_restarts = 1'000'000};
  }

  static muster::Plan plan_for(const std::vector<muster::HostFacts>& hosts) {
    muster::Inventory inventory{.source = "benchmark"};
    for (const muster::HostFacts& host : hosts)
      inventory.hosts.push_back(host.host);
    return muster::plan(inventory, {});
  }

  static std::string id_of(int host) {
    char id[64];
    std::snprintf(id, sizeof(id), "%08x-0000-4000-8000-%012x", host * 2654435761U, host);
    return id;
  }

  double uniform(double limit) {
    return std::uniform_real_distribution<double>(0, limit)(random_);
  }

  // One host in a hundred is slow, and a lost message comes later.
  double delay(const std::string& id) {
    const bool is_slow = std::hash<std::string>()(id) % 100 == 0;
    const bool is_lost = uniform(1) < options_.loss;
    return (is_slow ? options_.slow_latency : options_.latency) + (is_lost ? kResent : 0);
  }

  void join(int host, double time) {
    const std::string id = id_of(host);
    muster::HostFacts facts{.id = id,
                            .min_hosts = num_hosts_,
                            .max_hosts = num_hosts_,
                            .node_rank = std::min(host, num_hosts_ - 1),
                            .address = cat("10.", host / 65536, ".", host / 256 % 256, ".", host % 256),
                            .master_port = 29'500,
                            .store = "tcp://10.0.0.1:29501",
                            .muster_version = "0",
                            .host = invented_host(host)};
    tell({.kind = Report::Kind::join, .from = id, .facts = std::move(facts)}, time);
  }

  // A host tells the coordinator something.
  void tell(Report report, double time) {
    report.number = report.kind == Report::Kind::lost ? 0 : ++last_number_[report.from];
    const std::string text = muster::to_text(report);
    const double arrives = in_.send(time, text.size()) + delay(report.from);
    log_bytes_ += static_cast<double>(text.size());
    events_.at(arrives, [this, text] { hear(text); });
  }

  // The coordinator reads the report when it has done what came before.
  void hear(const std::string& text) {
    const double begin = std::max(events_.now(), free_);
    const double before = thread_seconds();
    const auto now = muster::Clock::time_point{} +
                     std::chrono::duration_cast<muster::Clock::duration>(
                         std::chrono::duration<double>(begin));
    std::vector<std::pair<Order, std::string>> orders;
    for (Order& order : coordinator_.on_report(muster::report_from_text(text), now)) {
      std::string order_text = muster::to_text(order);
      orders.emplace_back(std::move(order), std::move(order_text));
    }
    const double took = thread_seconds() - before;
    processor_ += took;
    free_ = begin + took;
    for (const auto& [order, order_text] : orders)
      give(order, order_text);
  }

  // Every host reads every order.
  void give(const Order& order, const std::string& text) {
    log_bytes_ += static_cast<double>(text.size());
    if (order.kind == Order::Kind::start) {
      running_ = order.hosts;
      round_ = order.round;
    }
    const std::vector<std::string> hosts = running_;
    for (const std::string& id : hosts) {
      const double arrives = out_.send(free_, text.size()) + delay(id);
      events_.at(arrives, [this, id, kind = order.kind, round = order.round] {
        obey(id, kind, round);
      });
    }
  }

  void obey(const std::string& id, Order::Kind kind, int round) {
    const double now = events_.now();
    if (kind == Order::Kind::start)
      last_started_ = now;
    if (kind == Order::Kind::finish) {
      last_left_ = now;
      tell({.kind = Report::Kind::leave, .from = id}, now);
    }
    if (kind != Order::Kind::stop || !ends_after_stop_)
      return;
    const double ended = now + uniform(options_.end_seconds);
    last_ended_ = std::max(last_ended_, ended);
    events_.at(ended, [this, id, round] {
      tell({.kind = Report::Kind::ended, .from = id, .round = round, .exits = stopped_ranks(id)},
           events_.now());
    });
  }

  static std::vector<muster::RankExit> stopped_ranks(const std::string& id) {
    std::vector<muster::RankExit> exits;
    for (int i = 0; i < kInventedGpus; ++i) {
      exits.push_back({.rank = i,
                       .local_rank = i,
                       .host = id,
                       .device = "GPU-00000000-0000-4000-8000-000000000000",
                       .pid = 1000 + i,
                       .signal = 15,
                       .sent_signal = 15,
                       .cause = "ended by SIGTERM, which the launcher sent"});
    }
    return exits;
  }

  // Lets everything happen that follows.
  Phase run(const std::string& name) {
    const double processor = processor_;
    const double bytes = in_.bytes() + out_.bytes();
    const int64_t messages = in_.messages() + out_.messages();
    events_.run();
    const double hosts = num_hosts_;
    return {.name = name,
            .processor = processor_ - processor,
            .bytes = (in_.bytes() + out_.bytes() - bytes) / hosts,
            .messages = static_cast<double>(in_.messages() + out_.messages() - messages) / hosts};
  }

  const Options& options_;
  const int num_hosts_;
  std::mt19937_64 random_;
  Events events_;
  Link in_, out_;
  muster::Coordinator coordinator_;
  std::map<std::string, int> last_number_;
  std::vector<std::string> running_;
  int round_ = 0;
  bool ends_after_stop_ = false;
  double free_ = 0;       // when the coordinator can read the next report
  double processor_ = 0;  // seconds that it has computed
  double log_bytes_ = 0;
  double last_started_ = 0;
  double last_ended_ = 0;
  double last_left_ = 0;
};

void run(const Options& options) {
  for (const int hosts : options.hosts) {
    Simulation simulation(options, hosts);
    std::vector<Phase> phases;
    phases.push_back(simulation.start());
    phases.push_back(simulation.death_until_stopped());
    phases.push_back(simulation.started_again());
    phases.push_back(simulation.end());
    std::printf("%d hosts, %d ranks\n", hosts, hosts * kInventedGpus);
    for (const Phase& phase : phases)
      std::printf("  %-26s %9.3f s  processor %8.3f s  %12.0f bytes a host  %6.1f messages a host\n",
                  phase.name.c_str(),
                  phase.seconds,
                  phase.processor,
                  phase.bytes,
                  phase.messages);
    std::printf("  logs %.1f MB\n", simulation.log_bytes() / 1e6);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Simulates the coordinator of a very large job.");
  app.add_option("--hosts", options.hosts, "of 8 GPUs each")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cluster_sim: %s\n", error.what());
    return 1;
  }
}
