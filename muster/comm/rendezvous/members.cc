#include "muster/comm/rendezvous/members.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/host/choice.h"

namespace muster {

namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kFirstWord{
    10};  // of waiting, before the missing ranks are named in the log

std::string member_key(int rank) {
  return cat("member/", rank);
}

std::string to_text(const RankIdentity& member) {
  return Json{{"rank", member.rank},
              {"world_size", member.world_size},
              {"host", member.host},
              {"pid", member.pid},
              {"pid_namespace", member.pid_namespace},
              {"device", member.device},
              {"backend", member.backend},
              {"libtorch", member.libtorch},
              {"nccl", member.nccl},
              {"takes_part", member.takes_part}}
      .dump();
}

RankIdentity member_from(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    throw Error(
        ErrorCode::invalid_argument,
        "rendezvous: expected a rank's identity in this store, got something else; see whether "
        "another program uses it");
  }
  return {.rank = json.value("rank", -1),
          .world_size = json.value("world_size", -1),
          .host = json.value("host", ""),
          .pid = json.value("pid", 0),
          .pid_namespace = json.value("pid_namespace", uint64_t{0}),
          .device = json.value("device", ""),
          .backend = json.value("backend", ""),
          .libtorch = json.value("libtorch", ""),
          .nccl = json.value("nccl", ""),
          .takes_part = json.value("takes_part", true)};
}

std::string name_of(const RankIdentity& member) {
  return cat("rank ", member.rank, " (pid ", member.pid, ", ", member.device, ")");
}

// The first to come says the world's size for all; the first with a rank owns it.
void register_self(c10d::Store& store, const RankIdentity& self) {
  const std::string first = store.compareSet("world_size", "", cat(self.world_size));
  if (first != cat(self.world_size)) {
    throw Error(ErrorCode::invalid_argument,
                cat("rendezvous: expected one world size, got ",
                    self.world_size,
                    " on rank ",
                    self.rank,
                    " and ",
                    first,
                    " on the rank that came first; start all ranks with the same number"));
  }
  const std::string mine = to_text(self);
  const std::string owner = store.compareSet(member_key(self.rank), "", mine);
  if (owner != mine) {
    throw Error(ErrorCode::invalid_argument,
                cat("rendezvous: expected one process with rank ",
                    self.rank,
                    ", got pid ",
                    self.pid,
                    " beside ",
                    name_of(member_from(owner)),
                    "; give every process its own rank"));
  }
}

std::vector<int> missing_ranks(c10d::Store& store, int world_size) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!store.check({member_key(rank)}))
      missing.push_back(rank);
  }
  return missing;
}

void wait_for_all(c10d::Store& store, const RankIdentity& self, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const Deadline first_word(kFirstWord);
  bool said = false;
  auto pause = std::chrono::milliseconds(1);
  int next = 0;
  while (next < self.world_size) {
    if (store.check({member_key(next)})) {
      ++next;
      continue;
    }
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  cat("rendezvous: expected ",
                      self.world_size,
                      " ranks within ",
                      timeout.count(),
                      " ms, missing rank(s) ",
                      join(missing_ranks(store, self.world_size), ", "),
                      " (seen by rank ",
                      self.rank,
                      "); see whether they were started, and why they ended"));
    }
    if (!said && first_word.passed()) {
      said = true;
      log(LogLevel::info,
          cat("rendezvous: waiting for rank(s) ",
              join(missing_ranks(store, self.world_size), ", "),
              " of ",
              self.world_size));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

std::string minor_of(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

void check_versions(const std::vector<RankIdentity>& members) {
  for (const RankIdentity& member : members) {
    if (minor_of(member.libtorch) == minor_of(members[0].libtorch))
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("rendezvous: expected one LibTorch version, got ",
                    members[0].libtorch,
                    " on ",
                    name_of(members[0]),
                    " and ",
                    member.libtorch,
                    " on ",
                    name_of(member),
                    "; build all ranks with the same"));
  }
}

// What may work together, but is the first thing to look at when it does not.
void tell_differences(const std::vector<RankIdentity>& members, const RankIdentity& self) {
  if (self.rank != 0)
    return;
  const auto tell = [&](const char* what, std::string RankIdentity::* version) {
    for (const RankIdentity& member : members) {
      if (member.*version == members[0].*version || (member.*version).empty())
        continue;
      log(LogLevel::warn,
          cat("rendezvous: ",
              what,
              " ",
              members[0].*version,
              " on ",
              name_of(members[0]),
              " and ",
              member.*version,
              " on ",
              name_of(member)));
      return;
    }
  };
  tell("LibTorch", &RankIdentity::libtorch);
  tell("NCCL", &RankIdentity::nccl);
}

}  // namespace

std::vector<RankIdentity> join(c10d::Store& store,
                               const RankIdentity& self,
                               std::chrono::milliseconds timeout) {
  std::vector<RankIdentity> members;
  translate_failures(cat("rendezvous on rank ", self.rank), [&] {
    register_self(store, self);
    wait_for_all(store, self, timeout);
    for (int rank = 0; rank < self.world_size; ++rank)
      members.push_back(member_from(store.get_to_str(member_key(rank))));
  });
  check_versions(members);
  tell_differences(members, self);
  return members;
}

std::string choose_backend(const std::vector<RankIdentity>& members, const std::string& asked) {
  const auto is_cpu = [](const RankIdentity& member) {
    return member.device.starts_with("cpu");
  };
  std::string nccl_obstacle;
  for (size_t i = 0; i < members.size(); ++i) {
    if (is_cpu(members[i]) && nccl_obstacle.empty())
      nccl_obstacle = cat(name_of(members[i]), " has no GPU");
    for (size_t j = i + 1; j < members.size() && !is_cpu(members[i]); ++j) {
      if (members[i].device != members[j].device || members[i].host != members[j].host)
        continue;
      nccl_obstacle = cat(name_of(members[i]), " and ", name_of(members[j]), " share one GPU");
    }
  }
  const bool any_asked = std::any_of(
      members.begin(), members.end(), [](const RankIdentity& m) { return m.backend == "nccl"; });
  if ((asked == "nccl" || any_asked) && !nccl_obstacle.empty()) {
    throw Error(ErrorCode::invalid_argument,
                cat("nccl: expected a GPU of its own for every rank, got: ",
                    nccl_obstacle,
                    "; change the placement, or use --backend gloo"));
  }
  for (const RankIdentity& member : members) {
    if (member.backend == members[0].backend)
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("backend: expected the same on every rank, got '",
                    members[0].backend,
                    "' on ",
                    name_of(members[0]),
                    " and '",
                    member.backend,
                    "' on ",
                    name_of(member)));
  }
  const auto elsewhere =
      std::find_if(members.begin(), members.end(), [&](const RankIdentity& member) {
        return member.host != members[0].host;
      });
  if (asked == "shm" && elsewhere != members.end()) {
    throw Error(ErrorCode::invalid_argument,
                cat("shm: expected all ranks on one host, got ",
                    name_of(members[0]),
                    " on ",
                    members[0].host,
                    " and ",
                    name_of(*elsewhere),
                    " on ",
                    elsewhere->host,
                    "; use gloo or auto"));
  }
  if (asked != "auto")
    return asked;
  if (nccl_obstacle.empty())
    return "nccl";
  std::vector<std::string> hosts;
  for (const RankIdentity& member : members)
    hosts.push_back(member.host);
  return choose_host_backend(hosts);
}

}  // namespace muster
