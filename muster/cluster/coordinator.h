// Decides for a job of several hosts: which take part, when their ranks start, what happens after a
// failure, when the job is over. A pure state machine: reports and the time go in, orders come out;
// coordinator_thread.h connects it to a store. Knows nothing of processes and sockets.
//
//   gathering ──enough hosts──▶ running ──all ranks ended well──▶ finished
//       ▲                          │ failure, lost host, new host
//       └──── again? ◀── stopping ◀┘            no ──▶ finished
//
// With `replaces`, the same things lead from running to running: to a round in place, to which
// processes come that run (coordinator_in_place.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/strings.h"
#include "muster/cluster/messages.h"
#include "muster/launch/restart.h"
#include "muster/placement/network_order.h"

namespace muster {

struct CoordinatorRules {
  int min_hosts = 1;
  int max_hosts = 1;
  int max_restarts = 0;
  // Processes that a failure, or a host that comes or goes, leaves running go on in place.
  bool replaces = false;
  milliseconds join_timeout{600'000};  // for min_hosts to come
  milliseconds last_call{30'000};      // with min_hosts there, for more
  milliseconds stop_timeout{60'000};   // for a stopped round's ranks to end
  // Before a rank is replaced in place: the others wait for it, also those of a host that is
  // stopped meanwhile, which has its ranks' grace period for all of it.
  milliseconds longest_pause{60'000};
  std::optional<milliseconds> time_limit = {};  // of the whole job
  // When that is over, where it does not count from the job's start.
  std::optional<TimePoint> ends_at{};
  // Rounds that one host may fail before it is set aside, where others are left.
  int max_host_failures = 3;
  std::string run_folder{};
  std::string launch{};  // JobFacts::launch
  // One GPU may be several agents' (--no-lease).
  bool shares_gpus = false;
  // As etcd does not tell at once that an agent has ended, whose machine may join again.
  bool sees_ends_late = false;
  // By these hosts without node ranks are numbered (network_order.h).
  SwitchPaths switches{};
  Int64s host_blocks{};
  Strings host_names{};  // by node rank, where the launcher knows them

  bool elastic() const { return min_hosts < max_hosts; }
};

class Coordinator {
 public:
  // The plan for these hosts, in this order. Throws: Error when there is none; the job then ends
  // with it.
  using Planner = std::function<Plan(std::vector<HostFacts>)>;
  // Says one line to people.
  using Say = TextFunction;

  Coordinator(CoordinatorRules rules, Planner planner, Say say, TimePoint now);

  // The orders that follow from a report, or from the time alone.
  Orders on_report(Report report, TimePoint now);
  Orders on_tick(TimePoint now);
  // A host of live_hosts() has been heard again.
  Orders on_sign_of_life(const std::string& id, TimePoint now);

  // Goes on after a coordinator that is gone, from what was reported and what it had ordered: all
  // of it, or what LogHistory leaves. `age`: since the job began. Returns the orders that follow.
  Orders take_over(const Reports& reports, const Orders& orders, TimePoint now, milliseconds age);

  bool finished() const { return phase_ == Phase::finished; }
  // Whether the job is to end, and does not yet, because of its time limit.
  bool time_limit_is_over(TimePoint now) const;
  bool has_hosts() const { return !members_.empty(); }
  // Whose end would be a loss: their signs of life are to be watched.
  Strings live_hosts() const;
  // "b (10.0.0.2)", for messages; the id itself for one that never joined.
  std::string name_of(const std::string& id) const;
  // How many things it knows of hosts and ranks. That must not grow while hosts come and go.
  size_t remembered() const;

 private:
  enum class Phase { gathering, running, stopping, finished };
  struct Member {
    HostFacts facts;
    int seniority = 0;  // 0: in no round yet
    bool in_round = false;
    bool ended = false;  // its ranks of the round
    bool leaves = false;
    bool has_ranks = true;       // in the round
    int last_report = 0;         // its number
    std::string planned_name{};  // in the round's plan
  };
  // An agent that wants the place of one that is there: it may have been started again, or started
  // twice.
  struct Newcomer {
    Report join;
    std::string why_not{};  // where no obstacle to joining is the reason
    int signs = 0;          // of life, that the other has given since
  };
  struct ToldSignal {
    TimePoint at{};
    StringSet by{};  // hosts
  };
  struct Trouble {  // why the round is being stopped
    void add_failure(const RankExit& exit);

    RankExits failures;
    RankExits replaced;                   // failures for which the round was begun in place
    std::map<int, size_t> place_of_rank;  // among the failures
    Strings lost;                         // names of hosts
    std::string error;                    // of a host that could not start, or of the job
    int error_code = 1;
    int stopped_by = 0;
    bool hosts_changed = false;  // one has joined or left: that costs no restart
  };

  bool is_told_again(const Report& report);
  void end_by_time_limit();
  void give_up_unended_hosts();
  // Whether it is from a host that takes part in this round, and speaks of this round.
  bool is_of_round(const Report& report) const;
  bool can_spare_a_host() const;
  void on_failing(const Report& report);
  void on_ended(const Report& report);
  void note_end(const RankExit& exit);
  void note_error(const Report& report);
  void note_stop(const Report& report);
  void let_leave(const std::string& id);  // when the round is over
  std::string why_ended(const Report& report) const;
  void on_gone(const std::string& id, bool lost);
  void go_on_without(const std::string& id, bool lost);
  void on_stop(const Report& report);
  void pass_on(const Report& report);
  bool is_told_by_another(const Report& report);
  void refuse(const std::string& id, const std::string& reason);
  bool is_second_agent(const std::string& newcomer);
  bool turn_away_second_agent(const Order& order);
  void stop_round(const std::string& reason, bool is_asked = false);
  void end_spared();
  bool all_ended();
  void round_over();
  void restart_after_loss();
  void restart_after_failure(const RankExit& first);
  void regather();
  void try_to_start();
  void finish_missing();
  void start(const Strings& ids);
  Order round_of(const Strings& ids) const;
  void enter_round(const Order& order);
  void finish(int exit_code, const std::string& reason);

  // coordinator_join.cc.
  void on_join(Report report);
  const std::string* holder_of(const std::optional<int>& node_rank) const;
  std::optional<std::string> same_agent(const HostFacts& facts) const;
  void forget_newcomer(const std::string& id);
  void let_newcomers_into_free_places();
  void let_newcomers_in(const std::string& place);
  std::string obstacle_to_joining(const HostFacts& facts) const;  // empty: it may join
  void do_without(const std::string& id, const std::string& error);
  int add_failure(const std::string& name);  // how many there are of this host
  // Counts a failure of the host's ranks, or of starting them. True: it is set aside from now on.
  bool count_failure(const std::string& name, bool can_be_spared);
  void note_new_failure(const std::string& name);
  bool is_there(const std::string& name) const;
  std::string set_aside_text(const std::string& name) const;
  void tell_differences(const HostFacts& facts) const;
  void order_new_ones(Strings& ids) const;
  Strings candidates() const;
  std::string numbered(int node_rank) const;
  std::string missing_text() const;

  // coordinator_in_place.cc. False: all ranks have to end.
  std::string obstacle_to_replacing_ranks(const Report& report) const;
  bool replace_in_place(const Report& report);
  std::string obstacle_to_regrouping() const;
  std::string obstacle_in_plan(const Order& next) const;
  std::string plan_in_place(const Strings& ids, Order& order) const;
  bool may_regroup() const;
  bool regroup_in_place(const std::string& what);
  bool leave_in_place(const Report& report);
  void go_on_in_place(Order order);

  // coordinator_takeover.cc.
  void replay(const Order& order);
  void join_again();

  CoordinatorRules rules_;
  Planner planner_;
  Say say_;
  TimePoint now_;
  TimePoint began_;
  TimePoint gathering_since_;
  TimePoint next_word_;
  TimePoint not_before_;
  std::optional<TimePoint> last_call_;
  std::optional<TimePoint> stop_deadline_;
  bool spares_ = false;  // the stop under way lets ranks come together first
  Phase phase_ = Phase::gathering;
  int round_ = 0;
  int restarts_ = 0;
  BackOff back_off_;
  TimePoint round_began_;
  int next_seniority_ = 1;
  Plan plan_;      // the round's
  Strings hosts_;  // and its hosts' ids, in the plan's order
  std::map<std::string, Member> members_;
  // The member that has joined last with a number; it may have gone since. Without it each host
  // that joins would be compared with all.
  std::map<int, std::string> holders_;
  std::string first_running_;  // no member before it has ranks of the round that run
  std::multimap<std::string, Newcomer> newcomers_;  // by the id of the member whose place they want
  std::map<std::string, int> failures_of_;  // by host name: of its ranks, and of starting any
  std::deque<std::string> failed_;          // these names, by their first failures; but those
                                            // of a coordinator before by the alphabet
  StringSet set_aside_;                     // names
  IntSet kept_signals_;                     // for the ranks of the next round
  std::map<int, ToldSignal> told_signals_;
  int hosts_in_round_ = 0;
  bool some_have_ended_ = false;  // hosts with ranks of the round
  Trouble trouble_;
  RankExits exits_;  // of the round
  Orders orders_;    // to be given
};

}  // namespace muster
