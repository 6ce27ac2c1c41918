// Every rank writes its identity into the store under its number, waits for all others', and reads
// them. Whatever does not fit together is an error on every rank that sees it, before any
// connection is made.
#include "muster/comm/rendezvous/members.h"

#include <algorithm>
#include <thread>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/host/choice.h"

namespace muster {

namespace {

// After so long a wait the log names the missing ranks.
constexpr std::chrono::seconds kFirstWord{10};

// The key of a rank's identity.
std::string member_key(int rank) {
  return cat("member/", rank);
}

// "rank 1 (pid 4711, cuda:0)".
std::string name_of(const RankIdentity& member) {
  return cat("rank ", member.rank, " (pid ", member.pid, ", ", printable(member.device), ")");
}

// The first to come says the world's size for all; the first with a rank owns it.
void register_self(c10d::Store& store, const RankIdentity& self) {
  const std::string first = store.compareSet("world_size", "", cat(self.world_size));
  if (first != cat(self.world_size)) {
    throw invalid_argument("rendezvous: expected one world size, got ",
                           self.world_size,
                           " on rank ",
                           self.rank,
                           " and ",
                           first,
                           " on the rank that came first; start all ranks with the same number");
  }
  const auto mine = to_text(self);
  const std::string owner = store.compareSet(member_key(self.rank), "", mine);
  if (owner != mine) {
    throw invalid_argument("rendezvous: expected one process with rank ",
                           self.rank,
                           ", got pid ",
                           self.pid,
                           " beside ",
                           name_of(rank_identity_from(owner, self.rank)),
                           "; give every process its own rank");
  }
}

// Asks for every rank, so it is for messages alone.
Ints missing_ranks(c10d::Store& store, int world_size) {
  return filtered_indices<int>(world_size,
                               [&](int rank) { return !store.check({member_key(rank)}); });
}

// Waits until every rank has registered. It asks for one rank after the other, ever more slowly.
void wait_for_all(c10d::Store& store, const RankIdentity& self, milliseconds timeout) {
  constexpr milliseconds kLongestPause{50};
  const Deadline deadline(timeout);
  const Deadline first_word(kFirstWord);
  bool has_said = false;
  auto pause = milliseconds(1);
  int next = 0;
  while (next < self.world_size) {
    if (store.check({member_key(next)})) {
      ++next;
      continue;
    }
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  "rendezvous: expected ",
                  self.world_size,
                  " ranks within ",
                  timeout.count(),
                  " ms, missing rank(s) ",
                  join(missing_ranks(store, self.world_size), ", "),
                  " (seen by rank ",
                  self.rank,
                  "); see whether they were started, and why they ended");
    }
    if (!has_said && first_word.passed()) {
      has_said = true;
      log_info("rendezvous: waiting for rank(s) ",
               join(missing_ranks(store, self.world_size), ", "),
               " of ",
               self.world_size);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

// "2.15" of "2.15.0".
std::string minor_of(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

// Ranks with different minor versions of LibTorch may not understand each other.
void check_versions(const RankIdentities& members) {
  for (const RankIdentity& member : members) {
    if (minor_of(member.libtorch) == minor_of(members[0].libtorch))
      continue;
    throw invalid_argument("rendezvous: expected one LibTorch version, got ",
                           members[0].libtorch,
                           " on ",
                           name_of(members[0]),
                           " and ",
                           member.libtorch,
                           " on ",
                           name_of(member),
                           "; build all ranks with the same");
  }
}

// Other versions may work together, but are the first thing to look at when they do not.
void tell_differences(const RankIdentities& members, const RankIdentity& self) {
  if (self.rank != 0)
    return;
  const auto tell = [&](const char* what, std::string RankIdentity::* version) {
    for (const RankIdentity& member : members) {
      if (member.*version == members[0].*version || (member.*version).empty())
        continue;
      log_warning("rendezvous: ",
                  what,
                  " ",
                  members[0].*version,
                  " on ",
                  name_of(members[0]),
                  " and ",
                  member.*version,
                  " on ",
                  name_of(member));
      return;
    }
  };
  tell("LibTorch", &RankIdentity::libtorch);
  tell("NCCL", &RankIdentity::nccl);
}

// A GPU's name is its UUID, or "cuda:0".
bool has_gpu(const RankIdentity& member) {
  return !member.device.starts_with("cpu");
}

// NCCL takes the MIG instances of a GPU for that GPU.
bool share_gpu(const RankIdentity& one, const RankIdentity& other) {
  const bool is_one_place = !one.pci_address.empty() && one.pci_address == other.pci_address;
  return one.host == other.host && (one.device == other.device || is_one_place);
}

// Why these ranks cannot use NCCL; empty where they can. Ranks that share a GPU are named before a
// rank without one.
std::string nccl_obstacle(const RankIdentities& members) {
  std::string obstacle;
  for (const size_t i : indices_of(members)) {
    const RankIdentity& member = members[i];
    if (!has_gpu(member)) {
      if (obstacle.empty())
        obstacle = cat(name_of(member), " has no GPU");
      continue;
    }
    for (size_t j = i + 1; j < members.size(); ++j) {
      if (share_gpu(member, members[j]))
        obstacle = cat(name_of(member), " and ", name_of(members[j]), " share one GPU");
    }
  }
  return obstacle;
}

// Throws where a rank asks for NCCL and there is an obstacle to it.
void check_nccl(const RankIdentities& members,
                const std::string& asked,
                const std::string& obstacle) {
  const bool any_asks = asked == "nccl" || contains(members, "nccl", &RankIdentity::backend);
  if (!any_asks || obstacle.empty())
    return;
  throw invalid_argument("nccl: expected a GPU of its own for every rank, got: ",
                         obstacle,
                         "; change the placement, or use --backend gloo");
}

// Each rank has asked for a backend, from its own arguments and environment.
void check_same_backend(const RankIdentities& members) {
  for (const RankIdentity& member : members) {
    if (member.backend == members[0].backend)
      continue;
    throw invalid_argument("backend: expected the same on every rank, got '",
                           members[0].backend,
                           "' on ",
                           name_of(members[0]),
                           " and '",
                           member.backend,
                           "' on ",
                           name_of(member));
  }
}

// Memory is shared within a host.
void check_one_host(const RankIdentities& members) {
  for (const RankIdentity& member : members) {
    if (member.host == members[0].host)
      continue;
    throw invalid_argument("shm: expected all ranks on one host, got ",
                           name_of(members[0]),
                           " on ",
                           members[0].host,
                           " and ",
                           name_of(member),
                           " on ",
                           member.host,
                           "; use gloo or auto");
  }
}

}  // namespace

RankIdentities join(c10d::Store& store, const RankIdentity& self, milliseconds timeout) {
  RankIdentities members;
  translate_failures(cat("rendezvous on rank ", self.rank), [&] {
    register_self(store, self);
    wait_for_all(store, self, timeout);
    for (const int rank : indices_below(self.world_size))
      members.push_back(rank_identity_from(store.get_to_str(member_key(rank)), rank));
  });
  check_versions(members);
  tell_differences(members, self);
  return members;
}

// A backend that was asked for must be possible, and the same everywhere; "auto" takes the fastest
// that is.
std::string choose_backend(const RankIdentities& members, const std::string& asked) {
  const auto obstacle = nccl_obstacle(members);
  check_nccl(members, asked, obstacle);
  check_same_backend(members);
  if (asked == "shm")
    check_one_host(members);
  if (asked != "auto")
    return asked;
  if (obstacle.empty())
    return "nccl";
  Strings hosts = mapped(members, &RankIdentity::host);
  return choose_host_backend(hosts);
}

}  // namespace muster
