// Who takes part. A host that joins is compared with those that are there: it may want a place that
// is taken, be the same agent started again, or have been set aside. A newcomer for a member's
// place waits until the member has shown whether it lives.
#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/cluster/coordinator.h"

namespace muster {

namespace {

constexpr size_t kMaxFailedAway = 100;  // hosts that have failed and are not there

// --nnodes as the user writes it.
std::string nnodes_text(int low, int high) {
  return low == high ? cat(low) : cat(low, ":", high);
}

std::string driver_text(const Host& host) {
  return text_or(framed("driver ", printable(host.driver_version)), "no driver");
}

std::string version_text(const HostFacts& facts) {
  return cat("muster ", printable(facts.muster_version));
}

// One GPU in the ranks of two hosts of a plan, by their indexes.
struct SharedGpu {
  std::string uuid{};
  int first = 0;
  int second = 0;
};

// The place in the machine, where a GPU has no id of its own, says nothing between machines.
std::optional<SharedGpu> shared_gpu(const Plan& plan) {
  std::map<std::string, int> owners;
  for (const RankPlan& rank : plan.ranks) {
    std::vector<DeviceAssignment> devices = rank.more_devices;
    devices.push_back(rank.device);
    for (const DeviceAssignment& device : devices) {
      const std::string& uuid = device.uuid.value;
      if (uuid.empty() || uuid.starts_with(kNoUniqueId))
        continue;
      const auto owner = owners.emplace(uuid, rank.host_index).first;
      if (owner->second != rank.host_index)
        return SharedGpu{uuid, owner->second, rank.host_index};
    }
  }
  return std::nullopt;
}

}  // namespace

// Ends a job that has no host to spare, or the part of the newcomer; of two newcomers, that of
// either. Nothing has begun. Where the one that runs may have ended unseen, the newcomer waits.
bool Coordinator::turn_away_second_agent(const Order& order) {
  const bool may_share = rules_.shares_gpus || (rules_.sees_ends_late && phase_ != Phase::running);
  const auto shared = may_share ? std::nullopt : shared_gpu(order.plan);
  if (!shared)
    return false;
  std::string first = order.hosts.at(shared->first);
  std::string second = order.hosts.at(shared->second);
  if (members_.at(second).seniority > 0)
    std::swap(first, second);
  if (rules_.sees_ends_late && members_.at(second).seniority > 0)
    return false;  // both are of the round
  const auto why = cat(
      "agents ",
      name_of(first),
      " and ",
      name_of(second),
      " are on one machine: both have ",
      printable(shared->uuid),
      "; start one agent on each machine, or show each its own GPUs (CUDA_VISIBLE_DEVICES); if "
      "they are of two jobs, give each job a --rdzv-id or a --rdzv-endpoint of its own; if they "
      "are to share it, pass --no-lease");
  if (!rules_.elastic()) {
    finish(1, why);
    return true;
  }
  if (rules_.sees_ends_late) {
    const Member& member = members_.at(second);
    const Report join{.kind = Report::Kind::join,
                      .from = second,
                      .number = member.last_report,
                      .facts = member.facts};
    newcomers_.insert({first, {.join = join, .why_not = why}});
  } else {
    say_(why);
    refuse(second, why);
  }
  members_.erase(second);
  return true;
}

// Asked before the ranks that run are disturbed for it.
bool Coordinator::is_second_agent(const std::string& newcomer) {
  const auto gpus = mapped_to<std::set<GpuUuid>>(members_.at(newcomer).facts.host.gpus, &Gpu::uuid);
  const bool is_near =
      any_of(plan_.ranks, [&](const RankPlan& rank) { return gpus.contains(rank.device.uuid); });
  try {
    return is_near && turn_away_second_agent(round_of(candidates()));
  } catch (const Error&) {
    return false;  // the next round's plan says why
  }
}

void Coordinator::on_join(Report report) {
  if (members_.contains(report.from))
    return;
  const HostFacts& facts = *report.facts;
  if (const auto place = same_agent(facts)) {
    newcomers_.insert({*place, {.join = report}});
    return;
  }
  if (const auto why = obstacle_to_joining(facts); !why.empty())
    return refuse(report.from, why);
  tell_differences(facts);
  if (facts.node_rank)
    holders_[*facts.node_rank] = report.from;
  members_[report.from] = {.facts = *std::move(report.facts), .last_report = report.number};
  const bool is_spare = hosts_in_round_ >= rules_.max_hosts || some_have_ended_;
  if (phase_ != Phase::running || !rules_.elastic() || is_spare)
    return;
  if (is_second_agent(report.from))
    return;
  const auto what = cat("host ", name_of(report.from), " has joined");
  if (regroup_in_place(what))
    return;
  trouble_.hosts_changed = true;
  stop_round(what, true);
}

// The member that has this number; null: none has. No two members have the same.
const std::string* Coordinator::holder_of(const std::optional<int>& node_rank) const {
  if (!node_rank)
    return nullptr;
  const std::string* const holder = value_at(holders_, *node_rank);
  return holder != nullptr && members_.contains(*holder) ? holder : nullptr;
}

// The id of the member that this host is if its agent was started again before anybody saw its end;
// nothing if it is none.
std::optional<std::string> Coordinator::same_agent(const HostFacts& facts) const {
  const std::string* const id = holder_of(facts.node_rank);
  if (id == nullptr)
    return std::nullopt;
  const HostFacts& other = members_.at(*id).facts;
  const bool is_same_host = other.host.name == facts.host.name && other.address == facts.address;
  return is_same_host ? std::optional(*id) : std::nullopt;
}

// The first sign may have been given before the newcomer came. The second says that the member
// lives, and the newcomer is refused.
Orders Coordinator::on_sign_of_life(const std::string& id, TimePoint now) {
  now_ = now;
  const auto [first, last] = newcomers_.equal_range(id);
  for (auto at = first; at != last;) {
    Newcomer& newcomer = at->second;
    if (++newcomer.signs < 2) {
      ++at;
      continue;
    }
    const auto& why_not = newcomer.why_not;
    refuse(newcomer.join.from,
           why_not.empty() ? obstacle_to_joining(*newcomer.join.facts) : why_not);
    at = newcomers_.erase(at);
  }
  return std::exchange(orders_, {});
}

// Called when the newcomer itself has gone.
void Coordinator::forget_newcomer(const std::string& id) {
  std::erase_if(newcomers_, [&](const auto& entry) { return entry.second.join.from == id; });
}

// Members go in several ways: lost, or with their ranks, or set aside.
void Coordinator::let_newcomers_into_free_places() {
  StringSet places;
  for (const auto& [place, newcomer] : newcomers_)
    if (!members_.contains(place))
      places.insert(place);
  for (const std::string& place : places)
    let_newcomers_in(place);
}

// The member whose place they want has gone.
void Coordinator::let_newcomers_in(const std::string& place) {
  Reports joins;
  const auto [first, last] = newcomers_.equal_range(place);
  for (auto at = first; at != last; ++at)
    joins.push_back(at->second.join);
  newcomers_.erase(first, last);
  for (const Report& join : joins)
    on_join(join);
}

// Everything that is wrong is said in the words of the flag that it comes from.
std::string Coordinator::obstacle_to_joining(const HostFacts& facts) const {
  if (facts.min_hosts != rules_.min_hosts || facts.max_hosts != rules_.max_hosts) {
    return cat("--nnodes: expected the same on every host, got ",
               nnodes_text(facts.min_hosts, facts.max_hosts),
               " on host ",
               facts.host.name,
               " and ",
               nnodes_text(rules_.min_hosts, rules_.max_hosts),
               " on the host that coordinates");
  }
  if (facts.node_rank && (*facts.node_rank < 0 || *facts.node_rank >= rules_.max_hosts)) {
    return cat("--node-rank: expected 0 to ",
               rules_.max_hosts - 1,
               " for ",
               plural(rules_.max_hosts, "host"),
               " (--nnodes), got ",
               *facts.node_rank);
  }
  if (const std::string* const id = holder_of(facts.node_rank)) {
    return cat("--node-rank: expected a different number on every host, got ",
               *facts.node_rank,
               " on host ",
               facts.host.name,
               " and on ",
               name_of(*id),
               "; give every host its own");
  }
  if (set_aside_.contains(facts.host.name))
    return set_aside_text(facts.host.name);
  if (!rules_.elastic() && std::ssize(members_) >= rules_.max_hosts)
    return cat("the job has its ", plural(rules_.max_hosts, "host"));
  return "";
}

// A host that could not start its ranks is refused. Its agent may be started again, and would join
// again, so this counts as its ranks' failures do.
void Coordinator::do_without(const std::string& id, const std::string& error) {
  say_(cat("host ", name_of(id), " cannot take part: ", error));
  refuse(id, error);
  count_failure(members_.at(id).facts.host.name, true);
}

int Coordinator::add_failure(const std::string& name) {
  const int failures = ++failures_of_[name];
  if (failures == 1)
    note_new_failure(name);
  return failures;
}

bool Coordinator::count_failure(const std::string& name, bool can_be_spared) {
  const int failures = add_failure(name);
  if (failures < rules_.max_host_failures || !can_be_spared)
    return false;
  set_aside_.insert(name);
  say_(set_aside_text(name));
  return true;
}

// A host that has failed may be away and come back, so its failures stay. But where hosts come with
// ever new names, those that failed first and are not there are forgotten at some number.
void Coordinator::note_new_failure(const std::string& name) {
  failed_.push_back(name);
  if (failed_.size() <= kMaxFailedAway + 2 * rules_.max_hosts)
    return;
  const auto first = std::ranges::find_if_not(
      failed_, [&](const std::string& failed) { return failed == name || is_there(failed); });
  if (first == failed_.end())
    return;
  failures_of_.erase(*first);
  set_aside_.erase(*first);
  failed_.erase(first);
}

bool Coordinator::is_there(const std::string& name) const {
  return any_of(std::views::values(members_), [&](const Member& member) {
    return member.facts.host.name == name || member.planned_name == name;
  });
}

std::string Coordinator::set_aside_text(const std::string& name) const {
  return cat("host ",
             name,
             " is set aside: its ranks have failed, or could not be started, ",
             plural(failures_of_.at(name), "time"),
             " (--max-host-failures)");
}

// Hosts with different versions may understand each other, but that is the first thing to look at
// when they do not.
void Coordinator::tell_differences(const HostFacts& facts) const {
  if (members_.empty())
    return;
  const auto& [first_id, first] = *members_.begin();
  const auto tell = [&](const std::string& own, const std::string& of_first) {
    if (own != of_first)
      say_(
          cat("host ", facts.host.name, " has ", own, ", host ", name_of(first_id), " ", of_first));
  };
  tell(version_text(facts), version_text(first.facts));
  tell(driver_text(facts.host), driver_text(first.facts.host));
}

// New hosts without numbers stand together in `ids`: they follow the network.
void Coordinator::order_new_ones(Strings& ids) const {
  const auto is_free = [&](const std::string& id) {
    const Member& member = members_.at(id);
    return member.seniority == 0 && !member.facts.node_rank;
  };
  const auto first = std::ranges::find_if(ids, is_free);
  const Strings free(first, std::find_if_not(first, ids.end(), is_free));
  const auto names = mapped(free, [&](const auto& id) { return members_.at(id).facts.host.name; });
  auto place = first;
  for (const size_t at : network_order(rules_.switches, names, rules_.host_blocks))
    *place++ = free[at];
}

// Those that were there before keep their order, so that ranks stay where they were; new ones
// follow in the order of their numbers, of the network and of their names, whoever came first.
Strings Coordinator::candidates() const {
  using Key = std::tuple<int, int, std::string_view, std::string_view>;
  std::vector<Key> keys;
  for (const auto& [id, member] : members_) {
    const bool is_new = member.seniority == 0;
    const int unnumbered = is_new ? rules_.max_hosts : -1;
    keys.emplace_back(member.facts.node_rank.value_or(unnumbered),
                      is_new ? next_seniority_ : member.seniority,
                      member.facts.host.name,
                      id);
  }
  std::ranges::sort(keys);
  auto ids = mapped(keys, [](const Key& key) { return std::string(std::get<3>(key)); });
  order_new_ones(ids);
  if (std::ssize(ids) > rules_.max_hosts)
    ids.resize(rules_.max_hosts);
  return ids;
}

// "node rank 1", or "b (node rank 1)" where the launcher knows which host that is.
std::string Coordinator::numbered(int node_rank) const {
  const auto number = cat("node rank ", node_rank);
  const bool is_known = node_rank < std::ssize(rules_.host_names);
  return is_known ? cat(rules_.host_names[node_rank], " (", number, ")") : number;
}

// Who is there, and who is missing where all have numbers.
std::string Coordinator::missing_text() const {
  IntSet there;
  Strings names;
  for (const auto& [id, member] : members_) {
    names.push_back(name_of(id));
    if (member.facts.node_rank)
      there.insert(*member.facts.node_rank);
  }
  const bool any_has_number = !there.empty() || !rules_.host_names.empty();
  const bool all_have_numbers = any_has_number && there.size() == members_.size();
  Strings missing;
  for (int rank = 0; all_have_numbers && rank < rules_.max_hosts; ++rank) {
    if (!there.contains(rank))
      missing.push_back(numbered(rank));
  }
  std::string text = names.empty() ? "" : cat(" (", join(names, ", "), ")");
  if (!missing.empty())
    text += cat("; missing: ", join(missing, ", "));
  return text;
}

}  // namespace muster
