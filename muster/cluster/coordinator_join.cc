// Whether a host that wants to join may, and what is said about it.
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

std::string Coordinator::why_not(const HostFacts& facts) const {
  if (facts.min_hosts != rules_.min_hosts || facts.max_hosts != rules_.max_hosts) {
    return cat("--nnodes: expected the same on every host, got ", size_text(facts.min_hosts, facts.max_hosts),
               " on host ", facts.host.name, " and ", size_text(rules_.min_hosts, rules_.max_hosts),
               " on the host that coordinates");
  }
  if (facts.node_rank && (*facts.node_rank < 0 || *facts.node_rank >= rules_.max_hosts)) {
    return cat("--node-rank: expected 0 to ", rules_.max_hosts - 1, " for ", rules_.max_hosts,
               " hosts (--nnodes), got ", *facts.node_rank);
  }
  for (const auto& [id, member] : members_) {
    if (!facts.node_rank || member.facts.node_rank != facts.node_rank) continue;
    return cat("--node-rank: expected one host with ", *facts.node_rank, ", got ", facts.host.name,
               " beside ", name_of(id), "; give every host its own");
  }
  if (set_aside_.contains(facts.host.name)) {
    return cat("host ", facts.host.name, " is set aside: its ranks have failed ",
               failures_of_.at(facts.host.name), " times");
  }
  if (!rules_.elastic() && std::ssize(members_) >= rules_.max_hosts)
    return cat("the job has its ", rules_.max_hosts, " hosts");
  return "";
}

// What may work together, but is the first thing to look at when it does not.
void Coordinator::tell_differences(const HostFacts& facts) const {
  if (members_.empty()) return;
  const auto& [first_id, first] = *members_.begin();
  if (first.facts.muster_version != facts.muster_version) {
    say_(cat("host ", facts.host.name, " has muster ", printable(facts.muster_version), ", host ",
             name_of(first_id), " ", printable(first.facts.muster_version)));
  }
  if (first.facts.host.driver_version != facts.host.driver_version) {
    say_(cat("host ", facts.host.name, " has ", driver_text(facts.host), ", host ", name_of(first_id), " ",
             driver_text(first.facts.host)));
  }
}

}  // namespace muster
