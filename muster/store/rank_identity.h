// What a rank tells the others of itself before they form a group, and its text in the store. A
// value and its text; comm/rendezvous compares them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

struct RankIdentity {
  int rank = 0;
  int world_size = 1;
  std::string host{};  // host_identity(): equal where memory and devices are shared
  int pid = 0;
  uint64_t pid_namespace = 0;  // in which the pid means this process
  std::string device{};        // "cpu", the GPU's UUID, or "cuda:0" where that is not known
  // Of the GPU, or of the one whose MIG instance it is: "0:59:0". Empty: not known.
  std::string pci_address{};
  std::string backend{};
  std::string libtorch{};  // "2.15.0"
  std::string nccl{};      // "2.27.3"; empty on a CPU
  bool takes_part = true;
  bool operator==(const RankIdentity&) const = default;
};
using RankIdentities = std::vector<RankIdentity>;

std::string to_text(const RankIdentity& member);

// Members that are missing get their defaults. Throws: invalid_argument when the text is no
// identity, or another rank's than `rank`.
RankIdentity rank_identity_from(const std::string& text, int rank);

}  // namespace muster
