// Anybody who reaches the store can have written the text: each member has the type that it should
// have, or the whole is no identity.
#include "muster/store/rank_identity.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_words.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(int rank, const std::string& got) {
  throw invalid_argument(
      "rendezvous: expected the identity of rank ",
      rank,
      " in this store, got ",
      got,
      "; see whether another program, or another version of muster, uses the store");
}

// A number that fits: nlohmann would cut one that does not.
template <class Number>
Number number_or(const Json& json, const char* name, Number otherwise, int rank) {
  const auto found = json.find(name);
  if (found == json.end())
    return otherwise;
  const bool fits = found->is_number_unsigned() && std::in_range<Number>(found->get<uint64_t>());
  if (!fits)
    refuse(rank, cat("a ", name, " of ", printable(found->dump())));
  return found->get<Number>();
}

}  // namespace

std::string to_text(const RankIdentity& member) {
  return Json{{"rank", member.rank},
              {"world_size", member.world_size},
              {"host", member.host},
              {"pid", member.pid},
              {"pid_namespace", member.pid_namespace},
              {"device", member.device},
              {"pci_address", member.pci_address},
              {"backend", member.backend},
              {"libtorch", member.libtorch},
              {"nccl", member.nccl},
              {"takes_part", member.takes_part}}
      .dump();
}

RankIdentity rank_identity_from(const std::string& text, int rank) {
  const auto json = parsed_json<Json>(text);
  if (!json.is_object())
    refuse(rank, "something else");
  try {
    RankIdentity member{.rank = number_or(json, "rank", -1, rank),
                        .world_size = number_or(json, "world_size", -1, rank),
                        .host = json.value("host", ""),
                        .pid = number_or(json, "pid", 0, rank),
                        .pid_namespace = number_or(json, "pid_namespace", uint64_t{0}, rank),
                        .device = json.value("device", ""),
                        .pci_address = json.value("pci_address", ""),
                        .backend = json.value("backend", ""),
                        .libtorch = json.value("libtorch", ""),
                        .nccl = json.value("nccl", ""),
                        .takes_part = json.value("takes_part", true)};
    if (member.rank != rank)
      refuse(rank, cat("that of rank ", member.rank));
    return member;
  } catch (const Json::exception& error) {
    refuse(rank, json_words(error.what()));
  }
}

}  // namespace muster
