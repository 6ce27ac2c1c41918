// How it works: one list in the process, of the first ranks only, since a report names no more.
#include "muster/base/lost_ranks.h"

#include <mutex>

#include "muster/base/contains.h"
#include "muster/base/lock.h"

namespace muster {

namespace {

// A job of thousands of ranks may lose all of them at once.
constexpr size_t kMost = 64;

struct LostRanks {
  std::mutex mutex;
  Ints ranks;
};

LostRanks& noted() {
  static auto& lost = *new LostRanks;  // never destroyed: threads may outlive main()
  return lost;
}

}  // namespace

void note_lost_rank(int rank) {
  const Lock lock(noted().mutex);
  Ints& ranks = noted().ranks;
  if (!contains(ranks, rank) && ranks.size() < kMost)
    ranks.push_back(rank);
}

Ints lost_ranks() {
  const Lock lock(noted().mutex);
  return noted().ranks;
}

void forget_lost_ranks() {
  const Lock lock(noted().mutex);
  noted().ranks.clear();
}

}  // namespace muster
