#include <cstdlib>

#include "muster/store/generations.h"
#include "muster/store/rank_identity.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

// What ranks and launchers tell each other by a store, which anybody may have written who reaches
// it.
void fuzz_rendezvous(const std::string& text) {
  for (const int rank : {0, 1}) {
    answer_or_error([&] {
      const RankIdentity member = rank_identity_from(text, rank);
      if (member.rank != rank || member.pid < 0 || member.world_size < 0)
        std::abort();
      if (rank_identity_from(to_text(member), rank) != member)
        std::abort();
    });
  }
  answer_or_error([&] {
    if (generation_from(text, 3).number != 3)
      std::abort();
  });
}

}  // namespace muster
