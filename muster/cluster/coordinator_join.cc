// Which hosts take part: whether one that wants to join may, their order, who is missing.
#include <algorithm>
#include <set>
#include <tuple>

#include "muster/base/strings.h"
#include "muster/cluster/coordinator.h"

namespace muster {

namespace {

std::string size_text(int low, int high) {
  return low == high ? cat(low) : cat(low, ":", high);
}

std::string driver_text(const Host& host) {
  return host.driver_version.empty() ? "no driver" : cat("driver ", printable(host.driver_version));
}

}  // namespace

void Coordinator::on_join(const Report& report) {
  if (members_.contains(report.from))
    return;
  const HostFacts& facts = *report.facts;
  if (const auto place = same_agent(facts)) {
    newcomers_.insert({*place, {.join = report}});
    return;
  }
  if (const std::string why = why_not(facts); !why.empty())
    return refuse(report.from, why);
  tell_differences(facts);
  members_[report.from] = {.facts = facts};
  if (phase_ != Phase::running || !rules_.elastic())
    return;
  const auto in_round = std::count_if(
      members_.begin(), members_.end(), [](const auto& entry) { return entry.second.in_round; });
  const bool ending = std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.in_round && entry.second.ended && entry.second.has_ranks;
  });
  if (in_round >= rules_.max_hosts || ending)
    return;  // it is a spare
  if (regroup_in_place(cat("host ", name_of(report.from), " has joined")))
    return;
  trouble_.hosts_changed = true;
  stop_round(cat("host ", name_of(report.from), " has joined"));
}

// The member that this one would be if it was started again before its end was known.
std::optional<std::string> Coordinator::same_agent(const HostFacts& facts) const {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const auto& entry) {
    const HostFacts& other = entry.second.facts;
    return facts.node_rank && other.node_rank == facts.node_rank &&
           other.host.name == facts.host.name && other.address == facts.address;
  });
  return found == members_.end() ? std::nullopt : std::optional(found->first);
}

// The first sign may have been given before the newcomer came; the second says that the member
// lives.
std::vector<Order> Coordinator::on_sign_of_life(const std::string& id, Clock::time_point now) {
  now_ = now;
  const auto [first, last] = newcomers_.equal_range(id);
  for (auto at = first; at != last;) {
    Newcomer& newcomer = at->second;
    if (++newcomer.signs < 2) {
      ++at;
      continue;
    }
    refuse(newcomer.join.from, why_not(*newcomer.join.facts));
    at = newcomers_.erase(at);
  }
  return std::exchange(orders_, {});
}

void Coordinator::forget_newcomer(const std::string& id) {
  std::erase_if(newcomers_, [&](const auto& entry) { return entry.second.join.from == id; });
}

void Coordinator::let_newcomers_in(const std::string& place) {
  std::vector<Report> joins;
  const auto [first, last] = newcomers_.equal_range(place);
  for (auto at = first; at != last; ++at)
    joins.push_back(at->second.join);
  newcomers_.erase(first, last);
  for (const Report& join : joins)
    on_join(join);
}

std::string Coordinator::why_not(const HostFacts& facts) const {
  if (facts.min_hosts != rules_.min_hosts || facts.max_hosts != rules_.max_hosts) {
    return cat("--nnodes: expected the same on every host, got ",
               size_text(facts.min_hosts, facts.max_hosts),
               " on host ",
               facts.host.name,
               " and ",
               size_text(rules_.min_hosts, rules_.max_hosts),
               " on the host that coordinates");
  }
  if (facts.node_rank && (*facts.node_rank < 0 || *facts.node_rank >= rules_.max_hosts)) {
    return cat("--node-rank: expected 0 to ",
               rules_.max_hosts - 1,
               " for ",
               rules_.max_hosts,
               " hosts (--nnodes), got ",
               *facts.node_rank);
  }
  for (const auto& [id, member] : members_) {
    if (!facts.node_rank || member.facts.node_rank != facts.node_rank)
      continue;
    return cat("--node-rank: expected a different number on every host, got ",
               *facts.node_rank,
               " on host ",
               facts.host.name,
               " and on ",
               name_of(id),
               "; give every host its own");
  }
  if (set_aside_.contains(facts.host.name))
    return set_aside_text(facts.host.name);
  if (!rules_.elastic() && std::ssize(members_) >= rules_.max_hosts)
    return cat("the job has its ", rules_.max_hosts, " hosts");
  return "";
}

// A host that could not start its ranks. Whoever started its agent may start it again, and it would
// join again: that counts as its ranks' failures do.
void Coordinator::do_without(const std::string& id, const std::string& error) {
  say_(cat("host ", name_of(id), " cannot take part: ", error));
  refuse(id, error);
  count_failure(members_.at(id).facts.host.name, true);
}

bool Coordinator::count_failure(const std::string& name, bool can_be_spared) {
  const int failures = ++failures_of_[name];
  if (failures < rules_.max_host_failures || !can_be_spared)
    return false;
  set_aside_.insert(name);
  say_(set_aside_text(name));
  return true;
}

std::string Coordinator::set_aside_text(const std::string& name) const {
  return cat("host ",
             name,
             " is set aside: its ranks have failed, or could not be started, ",
             plural(failures_of_.at(name), "time"),
             " (--max-host-failures)");
}

// What may work together, but is the first thing to look at when it does not.
void Coordinator::tell_differences(const HostFacts& facts) const {
  if (members_.empty())
    return;
  const auto& [first_id, first] = *members_.begin();
  if (first.facts.muster_version != facts.muster_version) {
    say_(cat("host ",
             facts.host.name,
             " has muster ",
             printable(facts.muster_version),
             ", host ",
             name_of(first_id),
             " ",
             printable(first.facts.muster_version)));
  }
  if (first.facts.host.driver_version != facts.host.driver_version) {
    say_(cat("host ",
             facts.host.name,
             " has ",
             driver_text(facts.host),
             ", host ",
             name_of(first_id),
             " ",
             driver_text(first.facts.host)));
  }
}

// Those that were there before keep their order, so that ranks stay where they were; new ones
// follow in the order of their numbers and names, whoever came first.
std::vector<std::string> Coordinator::candidates() const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_)
    ids.push_back(id);
  const auto key = [&](const std::string& id) {
    const Member& member = members_.at(id);
    const int unknown = rules_.max_hosts;
    return std::tuple(member.facts.node_rank.value_or(member.seniority == 0 ? unknown : -1),
                      member.seniority == 0 ? next_seniority_ : member.seniority,
                      member.facts.host.name,
                      id);
  };
  std::sort(ids.begin(), ids.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  if (ids.size() > static_cast<size_t>(rules_.max_hosts))
    ids.resize(static_cast<size_t>(rules_.max_hosts));
  return ids;
}

std::string Coordinator::missing_text() const {
  std::set<int> there;
  std::vector<std::string> names;
  for (const auto& [id, member] : members_) {
    names.push_back(name_of(id));
    if (member.facts.node_rank)
      there.insert(*member.facts.node_rank);
  }
  std::vector<int> missing;
  for (int rank = 0; rank < rules_.max_hosts && !there.empty() && there.size() == members_.size();
       ++rank) {
    if (!there.contains(rank))
      missing.push_back(rank);
  }
  std::string text = names.empty() ? "" : cat(" (", join(names, ", "), ")");
  if (!missing.empty())
    text += cat("; missing: node rank ", join(missing, ", "));
  return text;
}

}  // namespace muster
