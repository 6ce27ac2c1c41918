// Events wait in a queue for their virtual time. A report takes the coordinator's link, then the
// coordinator, which reads one after another; an order takes the link once for each host that waits
// for it, and an order to start twice more: each host asks for its part of the plan. A host that
// has not read all orders asks for the next ones, as real hosts do.
#include "benchmarks/cluster_simulation.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

#include "benchmarks/invented_hosts.h"
#include "muster/base/strings.h"
#include "muster/cluster/stored_plan.h"
#include "muster/placement/planner.h"
#include "muster/store/store.h"

using muster::cat;
using muster::Order;
using muster::Report;

namespace {

constexpr double kResent = 0.2;      // until a lost message is sent again
constexpr double kJoinSeconds = 5;   // in which all hosts come
constexpr double kEndSeconds = 0.5;  // that ranks take to end, at most
constexpr double kMinute = 60;
constexpr size_t kQuestionBytes = 100;     // for a host's part: a key and a frame
constexpr std::chrono::seconds kKept{20};  // of what nobody needs in the logs

double thread_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

muster::Plan plan_for(std::vector<muster::HostFacts> hosts) {
  muster::Inventory inventory{.source = "benchmark"};
  for (muster::HostFacts& host : hosts)
    inventory.hosts.push_back(std::move(host.host));
  return muster::plan(inventory, {});
}

// As long as a real one, and as hard to compress.
std::string id_of(int host) {
  std::mt19937_64 random(host);
  char id[64];
  std::snprintf(id,
                sizeof(id),
                "%08lx-%04lx-4000-8000-%012lx",
                random() & 0xffffffff,
                random() & 0xffff,
                random() & 0xffffffffffff);
  return id;
}

}  // namespace

void ModelStore::set(const std::string& key, const std::string& value) {
  std::string& kept = values_[key];
  bytes_ += static_cast<double>(value.size()) - static_cast<double>(kept.size());
  kept = value;
}

std::string ModelStore::get(const std::string& key, std::chrono::milliseconds /*timeout*/) {
  return values_.at(key);
}

int64_t ModelStore::add(const std::string& key, int64_t amount) {
  const auto found = values_.find(key);
  const int64_t before = found == values_.end() ? 0 : muster::parse_int(found->second).value_or(0);
  set(key, cat(before + amount));
  return before + amount;
}

std::string ModelStore::compare_set(const std::string& key,
                                    const std::string& expected,
                                    const std::string& desired) {
  const auto found = values_.find(key);
  const std::string now = found == values_.end() ? "" : found->second;
  if (now != expected)
    return now;
  set(key, desired);
  return desired;
}

bool ModelStore::check(const std::vector<std::string>& keys) {
  return std::ranges::all_of(keys,
                             [this](const std::string& key) { return values_.contains(key); });
}

void ModelStore::wait(const std::vector<std::string>& /*keys*/,
                      std::chrono::milliseconds /*timeout*/) {}

bool ModelStore::remove(const std::string& key) {
  const auto removed = values_.extract(key);
  if (removed.empty())
    return false;
  bytes_ -= static_cast<double>(removed.mapped().size());
  return true;
}

int64_t ModelStore::num_keys() {
  return std::ssize(values_);
}

size_t ModelStore::bytes_of(const std::vector<std::string>& keys) const {
  size_t bytes = 0;
  for (const std::string& key : keys)
    bytes += values_.at(key).size();
  return bytes;
}

bool ClusterSimulation::Event::operator<(const Event& other) const {
  return std::pair(time, number) > std::pair(other.time, other.number);
}

ClusterSimulation::ClusterSimulation(const NetworkModel& network, int hosts, int min_hosts)
    : network_(network),
      hosts_(hosts),
      min_hosts_(min_hosts),
      coordinator_(
          {.min_hosts = min_hosts, .max_hosts = hosts, .max_restarts = 1'000'000},
          plan_for,
          [](const std::string&) {},
          muster::Clock::time_point{}),
      history_(kKept) {}

PhaseCost ClusterSimulation::start() {
  const Totals before = totals();
  for (int host = 0; host < hosts_; ++host)
    join(uniform(kJoinSeconds));
  PhaseCost cost = run("all hosts join and start", before);
  cost.seconds = last_started_;
  return cost;
}

PhaseCost ClusterSimulation::lose_hosts(int count) {
  const Totals before = totals();
  for (int i = 0; i < count; ++i) {
    tell({.kind = Report::Kind::lost, .from = running_.back()}, before.time);
    listeners_.erase(running_.back());
    running_.pop_back();
  }
  const std::string name =
      count == 1 ? "a host is lost, all ranks end" : cat(count, " hosts are lost at once");
  PhaseCost cost = run(name, before);
  cost.seconds = last_ended_ - before.time;
  return cost;
}

PhaseCost ClusterSimulation::replace_them() {
  const Totals before = totals();
  for (auto there = std::ssize(running_); there < hosts_; ++there)
    join(before.time);
  PhaseCost cost = run("others join, all start", before);
  cost.seconds = last_started_ - before.time;
  return cost;
}

PhaseCost ClusterSimulation::fail_everywhere() {
  const Totals before = totals();
  for (const std::string& id : running_)
    end_ranks_of(id, round_, /*failed=*/true);
  PhaseCost cost = run("all ranks fail, all start again", before);
  cost.seconds = last_started_ - before.time;
  return cost;
}

PhaseCost ClusterSimulation::come_and_go(int times) {
  PhaseCost all{.name = cat("a host leaves and one joins, ", times, " times")};
  for (int i = 0; i < times; ++i) {
    now_ += kMinute;
    for (const PhaseCost& cost : {lose_a_host(), replace_them()}) {
      all.seconds += cost.seconds;
      all.processor += cost.processor;
      all.bytes_per_host += cost.bytes_per_host;
      all.messages_per_host += cost.messages_per_host;
    }
  }
  return all;
}

PhaseCost ClusterSimulation::end() {
  const Totals before = totals();
  for (const std::string& id : running_)
    tell({.kind = Report::Kind::ended, .from = id, .round = round_}, before.time);
  PhaseCost cost = run("all ranks end well, all hosts leave", before);
  cost.seconds = last_left_ - before.time;
  return cost;
}

void ClusterSimulation::at(double time, std::function<void()> action) {
  events_.push({time, next_event_++, std::move(action)});
}

ClusterSimulation::Totals ClusterSimulation::totals() const {
  return {.time = now_,
          .processor = processor_,
          .bytes = in_.bytes + out_.bytes,
          .messages = in_.messages + out_.messages};
}

// Lets everything happen that follows. The time itself brings orders, too.
PhaseCost ClusterSimulation::run(const std::string& name, const Totals& before) {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.action();
  }
  forget_history();
  const Totals after = totals();
  return {.name = name,
          .processor = after.processor - before.processor,
          .bytes_per_host = (after.bytes - before.bytes) / hosts_,
          .messages_per_host = static_cast<double>(after.messages - before.messages) / hosts_};
}

// Some keys of the history are no entries: signs of life.
void ClusterSimulation::forget_history() {
  for (auto keys = history_.take_due(clock(now_)); !keys.empty();
       keys = history_.take_due(clock(now_))) {
    for (const std::string& key : keys)
      store_.remove(key);
  }
}

// When the last byte of a message has left that is ready at `time`.
double ClusterSimulation::send(Link& link, double time, size_t bytes) const {
  link.free = std::max(link.free, time) + static_cast<double>(bytes) / network_.bytes_per_second;
  link.bytes += static_cast<double>(bytes);
  ++link.messages;
  return link.free;
}

double ClusterSimulation::uniform(double limit) {
  return std::uniform_real_distribution<double>(0, limit)(random_);
}

// One host in a hundred is slow, and a lost message comes later.
double ClusterSimulation::delay(const std::string& id) {
  const bool is_slow = std::hash<std::string>()(id) % 100 == 0;
  const bool is_lost = uniform(1) < network_.loss;
  return (is_slow ? network_.slow_latency : network_.latency) + (is_lost ? kResent : 0);
}

muster::Clock::time_point ClusterSimulation::clock(double time) const {
  return muster::Clock::time_point{} +
         std::chrono::duration_cast<muster::Clock::duration>(std::chrono::duration<double>(time));
}

// The hosts have no numbers of their own, as in an elastic job.
void ClusterSimulation::join(double time) {
  const int host = joined_++;
  const std::string id = id_of(host);
  muster::HostFacts facts{
      .id = id,
      .min_hosts = min_hosts_,
      .max_hosts = hosts_,
      .address = cat("10.", host / 65'536 % 256, ".", host / 256 % 256, ".", host % 256),
      .master_port = 29'500,
      .store = "tcp://10.0.0.1:29501",
      .muster_version = "0.0.0",
      .host = invented_host(host)};
  tell({.kind = Report::Kind::join, .from = id, .facts = std::move(facts)}, time);
}

// A loss is told by the store's server, for the host.
void ClusterSimulation::tell(Report report, double time) {
  report.number = report.kind == Report::Kind::lost ? 0 : ++last_number_[report.from];
  const std::string text = muster::to_text(report);
  at(send(in_, time, text.size()) + delay(report.from), [this, text] { hear(text); });
}

// The coordinator reads the report when it has done what came before.
void ClusterSimulation::hear(const std::string& text) {
  const double begin = std::max(now_, free_);
  const double before = thread_seconds();
  Report report = muster::report_from_text(text);
  history_.note(++reports_, report, clock(begin));
  std::vector<std::pair<Order, muster::WrittenOrder>> given;
  for (Order& order : coordinator_.on_report(std::move(report), clock(begin))) {
    muster::WrittenOrder written =
        muster::write_order(store_, std::ssize(given_) + std::ssize(given) + 1, order);
    given.emplace_back(std::move(order), std::move(written));
  }
  const double took = thread_seconds() - before;
  processor_ += took;
  free_ = begin + took;
  store_.set(muster::log_entry_key(muster::kReports, reports_), text);
  for (const auto& [order, written] : given)
    give(order, written);
}

// Every host reads every order, and of an order to start its part. The log begins with this one for
// a host that is new.
void ClusterSimulation::give(const Order& order, const muster::WrittenOrder& written) {
  history_.note(order, written.keys, clock(free_));
  given_.push_back(
      {.head = {.kind = order.kind, .round = order.round},
       .stored = muster::order_from_text(store_.values().at(written.keys.front())).stored,
       .whole = store_.bytes_of(written.keys)});
  if (order.kind == Order::Kind::start) {
    running_ = order.hosts;
    round_ = order.round;
    places_.clear();
    for (const std::string& id : running_)
      places_.emplace(id, places_.size());
  }
  for (const std::string& id : running_) {
    const auto [at, is_new] = listeners_.try_emplace(id);
    if (is_new)
      at->second.reader = muster::OrderReader(std::ssize(given_));
    if (std::exchange(at->second.waits, false))
      answer(id, free_);
  }
}

// With the orders that the host does not know and takes at a time.
void ClusterSimulation::answer(const std::string& id, double time) {
  const auto orders = listeners_.at(id).reader.read(store_, std::chrono::milliseconds(0));
  size_t bytes = 0;
  for (const std::string& order : orders)
    bytes += order.size();
  at(send(out_, time, bytes) + delay(id),
     [this, id, count = orders.size()] { receive(id, count); });
}

// Where there are more, the host asks on; else it waits.
void ClusterSimulation::receive(const std::string& id, size_t orders) {
  Listener& listener = listeners_.at(id);
  for (size_t i = 0; i < orders; ++i) {
    const Given& given = given_.at(listener.reader.next() - 1);
    listener.reader.pass();
    if (given.head.kind != Order::Kind::start) {
      obey(id, given.head);
      continue;
    }
    const size_t part = store_.bytes_of(muster::keys_of_part(given.stored, id));
    ask_for_part(id, given.head, part + (id == running_.front() ? given.whole : 0));
  }
  listener.waits = listener.reader.next() > std::ssize(given_);
  if (!listener.waits)
    at(send(in_, now_, kQuestionBytes) + delay(id), [this, id] { answer(id, now_); });
}

// The store answers at once.
void ClusterSimulation::ask_for_part(const std::string& id, const Order& order, size_t bytes) {
  const double asked = send(in_, now_, kQuestionBytes) + delay(id);
  at(asked, [this, id, order, bytes] {
    at(send(out_, now_, bytes) + delay(id), [this, id, order] { obey(id, order); });
  });
}

void ClusterSimulation::obey(const std::string& id, const Order& order) {
  switch (order.kind) {
    case Order::Kind::start:
      last_started_ = now_;
      break;
    case Order::Kind::stop:
      at(now_ + uniform(kEndSeconds),
         [this, id, round = order.round] { end_ranks_of(id, round, /*failed=*/false); });
      break;
    case Order::Kind::finish:
      last_left_ = now_;
      tell({.kind = Report::Kind::leave, .from = id}, now_);
      break;
    case Order::Kind::refuse:
    case Order::Kind::signal:
      break;
  }
}

// The eight ranks of a host have failed, or are ended by its agent: once in a round.
void ClusterSimulation::end_ranks_of(const std::string& id, int round, bool failed) {
  if (std::exchange(ended_in_round_[id], round) == round)
    return;
  last_ended_ = std::max(last_ended_, now_);
  Report report{.kind = Report::Kind::ended, .from = id, .round = round};
  const int place = places_.at(id);
  for (int i = 0; i < kInventedGpus; ++i) {
    report.exits.push_back({.rank = place * kInventedGpus + i,
                            .local_rank = i,
                            .host = id,
                            .device = cat("GPU-", id),
                            .pid = 1000 + i,
                            .exit_code = failed ? 1 : 0,
                            .signal = failed ? 0 : 15,
                            .sent_signal = failed ? 0 : 15,
                            .cause = failed ? "exit code 1" : "ended by SIGTERM"});
  }
  tell(std::move(report), now_);
}
