// The messages between the hosts of a job and the coordinator, as values. Hosts report; the
// coordinator orders. Both are logs in the job's store (Store::append), so that everybody sees the
// same orders in the same sequence and a coordinator that takes over can read what was said before.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/device/visible_devices.h"
#include "muster/launch/rank_exit.h"
#include "muster/placement/plan.h"

namespace muster {

// The logs' names in the store.
inline constexpr auto kReports = "reports";
inline constexpr auto kOrders = "orders";

// The key under which a host counts up as long as it lives.
std::string sign_of_life_key(const std::string& id);
// Whose sign of life it is; nothing for another key.
std::optional<std::string> host_of_sign_of_life(const std::string& key);

// All that a host tells of itself when it joins.
struct HostFacts {
  std::string id{};   // of its agent: each process has its own
  int min_hosts = 1;  // of the job, as this host was told
  int max_hosts = 1;
  std::optional<int> node_rank{};  // the place it asks for
  std::optional<int> nproc{};      // ranks it is to have; nothing: as the job says
  std::string address{};           // where other hosts reach it
  int master_port = 0;             // held there, for PyTorch's store
  std::string store{};             // served there, for muster's ranks
  std::string muster_version{};
  VisibilityMasks masks{};
  Host host{};
  bool operator==(const HostFacts&) const = default;
};

struct Report {
  enum class Kind {
    join,     // with facts
    failing,  // ranks of the round have failed just now: exits has them
    ended,    // all ranks of the round have ended: exits has them; or could not start: error
    leave,    // the host ends its part and wants no more orders
    lost,     // the host's process has ended, or is silent
    stop,     // the job is to end, by this signal or error
    signal,   // all ranks are to get this signal
  };
  Kind kind = Kind::join;
  std::string from{};                // the host's id
  int number = 0;                    // of this host's reports: no two are alike
  int round = 0;                     // failing, ended
  std::optional<HostFacts> facts{};  // join
  RankExits exits{};                 // failing, ended
  int stopped_by = 0;                // ended, leave, stop: the signal that the agent got; 0: none
  std::string error{};               // ended, stop: why it cannot go on; failing: why not in place
  int exit_code = 0;                 // with error
  int signal = 0;                    // signal
};
using Reports = std::vector<Report>;

// A round's number as an attempt: rounds count from 1, attempts from 0. Before any round: 0.
inline int attempt_of(int round) {
  return std::max(0, round - 1);
}

// Where the store has the plan of an order to start, and the ids of its hosts, for whoever wants
// the whole or a part (order_log.h).
struct StoredPlan {
  std::string place{};   // with it begin keys that no other order uses
  int buckets = 0;       // of hosts, by their ids
  std::string digest{};  // of the whole
  // How many pieces a bucket has that is too large for one value of the store; by its number.
  std::map<std::string, int> pieces{};
};

// All hosts of a round, and the plan for all of them.
struct WholeRound {
  Strings hosts{};  // ids, in the plan's order
  Plan plan{};
};

struct Order {
  enum class Kind {
    start,   // these hosts start their ranks of this plan; in place: those without a process
    stop,    // the round's ranks are to be ended; another may follow
    finish,  // the job is over
    refuse,  // one host takes no part
    signal,  // the round's ranks get a signal
  };
  Kind kind = Kind::start;
  int round = 0;
  // start: ids, in the plan's order, and none as a host reads it; refuse: the one
  Strings hosts{};
  int num_hosts = 0;         // start
  std::string run_folder{};  // start: the name of the job's, for hosts that were not told one
  std::string launch{};      // start: JobFacts::launch
  Plan plan{};               // start: whole; as a host reads it, its part
  StoredPlan stored{};       // start, as it is read
  std::optional<int> host_index{};            // start, as a host reads it; nothing: a spare
  std::shared_ptr<const WholeRound> whole{};  // start, as the first host reads it
  // stop: the ranks are asked to, and may come together first, to stop after the same step
  bool is_asked = false;
  bool in_place = false;                  // start: processes of the round before go on in this one
  milliseconds pause{0};                  // start in place: before processes are started
  int restart_count = 0;                  // start, finish
  std::map<std::string, int> failures{};  // start: rounds that hosts have failed so far, by name
  StringSet set_aside{};                  // start: names of hosts
  std::string master_addr{};              // start
  int master_port = 0;                    // start
  std::string store{};                    // start
  std::string reason{};                   // stop, finish, refuse; start in place
  int exit_code = 0;                      // finish, refuse
  int signal = 0;                         // signal; SIGKILL: the ranks are ended at once
  // finish, start in place: of the round that failed, the cause first
  RankExits exits{};
};

using Orders = std::vector<Order>;

// A kind's name, as "join".
const char* to_string(Report::Kind kind);
const char* to_string(Order::Kind kind);

std::string to_text(const Report& report);
// The text of a start has the common part of its plan, and where the store has the rest.
std::string to_text(const Order& order, const StoredPlan& stored);
inline std::string to_text(const Order& order) {
  return to_text(order, order.stored);
}

// Throws: invalid_argument when the text is no report, or no order, of this version.
Report report_from_text(const std::string& text);
Order order_from_text(const std::string& text);

}  // namespace muster
