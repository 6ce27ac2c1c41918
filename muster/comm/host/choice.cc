// The hosts are counted by their identities: what matters is whether any has several ranks, and
// whether one has too many.
#include "muster/comm/host/choice.h"

#include <algorithm>
#include <map>

#include "muster/shm/layout.h"

namespace muster {

std::string choose_host_backend(const Strings& hosts) {
  std::map<std::string, int> ranks_of;
  int most = 0;
  for (const auto& host : hosts)
    most = std::max(most, ++ranks_of[host]);
  if (most > shm::kMaxRanks)
    return "gloo";
  if (ranks_of.size() == 1)
    return "shm";
  return most > 1 ? "shm+gloo" : "gloo";
}

}  // namespace muster
