// What messages call the ranks of a group: by their numbers in the job, of which the group may be a
// part. So a message, the launcher's card and the user's mesh speak of the same rank.
#pragma once

#include <string>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

struct RankNames {
  Ints ranks{};            // one for each rank of the group
  int size = 0;            // the job's
  bool sub_group = false;  // not all of the job's ranks
  // These are the ranks of one host, of a group that has ranks on other hosts too.
  bool of_one_host = false;

  static RankNames of_all(int size) { return {.ranks = numbers_below(size), .size = size}; }

  int operator[](int rank) const { return ranks.at(rank); }

  Ints operator()(Ints numbers) const {
    for (int& rank : numbers)
      rank = (*this)[rank];
    return numbers;
  }

  // The names of the group whose ranks are these.
  RankNames part(const Ints& members) const {
    return {.ranks = (*this)(members),
            .size = size,
            .sub_group = sub_group,
            .of_one_host = of_one_host};
  }

  // "rank 2 of 4", and of a sub-group "rank 2 of 4 (group of ranks 0, 2)".
  std::string whose(int rank) const { return cat("rank ", (*this)[rank], " of ", size, group()); }

  // " (group of ranks 0, 2)", of a sub-group.
  std::string group() const {
    return sub_group ? cat(" (group of ranks ", join(ranks, ", "), ")") : "";
  }
};

}  // namespace muster
