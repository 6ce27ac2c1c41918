// A job of very many hosts without any: the real coordinator and its real messages, on a virtual
// clock and a modelled network. Processor time is measured, time on the wire is computed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/log_history.h"
#include "muster/cluster/messages.h"
#include "muster/cluster/order_log.h"
#include "muster/cluster/order_reader.h"
#include "muster/store/store.h"

// Units: seconds and bytes.
struct NetworkModel {
  double latency = 100e-6;           // one way
  double slow_latency = 20e-3;       // of one host in a hundred
  double bytes_per_second = 1.25e9;  // of the coordinator's link, each way
  double loss = 1e-4;                // of messages; each comes 200 ms later
};

// What one part of the job took. Units: seconds; bytes and messages of the coordinator's link.
struct PhaseCost {
  std::string name;
  double seconds = 0;    // until the last host has what it waits for
  double processor = 0;  // of the coordinator
  double bytes_per_host = 0;
  double messages_per_host = 0;
};

// What the job's store has, without anybody who waits for it.
class ModelStore final : public muster::Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool remove(const std::string& key) override;
  int64_t num_keys() override;

  const std::map<std::string, std::string>& values() const { return values_; }
  double bytes() const { return bytes_; }
  // Of the values of these keys.
  size_t bytes_of(const std::vector<std::string>& keys) const;
  using muster::Store::values;

 private:
  std::map<std::string, std::string> values_;
  double bytes_ = 0;
};

class ClusterSimulation {
 public:
  // Hosts of 8 GPUs; so many may be fewer, where hosts come and go.
  ClusterSimulation(const NetworkModel& network, int hosts, int min_hosts);

  // All hosts join within five seconds, and start their ranks.
  PhaseCost start();
  // A host is lost: until the ranks of all others have ended, which takes them half a second.
  PhaseCost lose_a_host() { return lose_hosts(1); }
  // So many in the same moment, as behind one switch.
  PhaseCost lose_hosts(int count);
  // As many hosts join as were lost: until all ranks have started.
  PhaseCost replace_them();
  // Ranks of all hosts fail in the same moment: until all have started again.
  PhaseCost fail_everywhere();
  // A host leaves and another joins, `times` times, a minute from each to the next.
  PhaseCost come_and_go(int times);
  // All ranks end well: until every host has left.
  PhaseCost end();

  // What the logs hold now.
  size_t log_entries() const { return store_.values().size(); }
  double log_bytes() const { return store_.bytes(); }

 private:
  // Everything that will happen, in the order of the virtual time.
  struct Event {
    double time;
    int64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const;
  };

  struct Totals {
    double time = 0;
    double processor = 0;
    double bytes = 0;
    int64_t messages = 0;
  };

  // An order that has been written: what hosts make of it, and the bytes of all its keys.
  struct Given {
    muster::Order head;
    muster::StoredPlan stored;
    size_t whole = 0;
  };

  // How far a host has read the log of orders.
  struct Listener {
    muster::OrderReader reader;
    bool waits = true;  // at the store, for the next
  };

  // One direction of the coordinator's link, on which messages follow one another.
  struct Link {
    double free = 0;
    double bytes = 0;
    int64_t messages = 0;
  };

  void at(double time, std::function<void()> action);
  Totals totals() const;
  PhaseCost run(const std::string& name, const Totals& before);
  double send(Link& link, double time, size_t bytes) const;
  double delay(const std::string& id);
  double uniform(double limit);
  void join(double time);
  void tell(muster::Report report, double time);
  void hear(const std::string& text);
  void give(const muster::Order& order, const muster::WrittenOrder& written);
  void answer(const std::string& id, double time);
  void receive(const std::string& id, size_t orders);
  void ask_for_part(const std::string& id, const muster::Order& order, size_t bytes);
  void obey(const std::string& id, const muster::Order& order);
  void end_ranks_of(const std::string& id, int round, bool failed);
  void forget_history();
  muster::Clock::time_point clock(double time) const;

  const NetworkModel network_;
  const int hosts_;
  const int min_hosts_;
  std::mt19937_64 random_{1};
  std::priority_queue<Event> events_;
  int64_t next_event_ = 0;
  double now_ = 0;
  Link in_, out_;
  muster::Coordinator coordinator_;
  muster::LogHistory history_;
  ModelStore store_;
  int64_t reports_ = 0;
  std::vector<Given> given_;  // by their numbers, from 1
  std::map<std::string, Listener> listeners_;
  int joined_ = 0;                          // hosts so far
  std::map<std::string, int> last_number_;  // of each host's reports
  std::vector<std::string> running_;        // hosts of the round
  std::map<std::string, int> places_;       // of each in the plan
  std::map<std::string, int> ended_in_round_;
  int round_ = 0;
  double free_ = 0;       // when the coordinator can read the next report
  double processor_ = 0;  // that it has taken
  double last_started_ = 0;
  double last_ended_ = 0;
  double last_left_ = 0;
};
