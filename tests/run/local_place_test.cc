#include "muster/run/local_place.h"

#include <gtest/gtest.h>

namespace muster::testing {
namespace {

std::vector<RankIdentity> ranks(
    const std::vector<std::pair<std::string, std::string>>& host_and_gpus) {
  std::vector<RankIdentity> members;
  for (const auto& [host, gpus] : host_and_gpus)
    members.push_back({.rank = static_cast<int>(members.size()), .host = host, .device = gpus});
  return members;
}

TEST(LocalPlace, CountsTheRanksOfAHost) {
  const LocalPlace place =
      local_place(ranks({{"a", "0,1"}, {"b", "0,1"}, {"a", "0,1"}, {"b", "0,1"}}), 3);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.host, 1);
  EXPECT_EQ(place.num_hosts, 2);
  EXPECT_EQ(place.gpu_rank, 1);
  EXPECT_EQ(place.gpu_world_size, 2);
}

TEST(LocalPlace, RanksThatSeeOtherGpusLeaveEachOtherTheirs) {
  const LocalPlace place = local_place(ranks({{"a", "0"}, {"a", "1"}}), 1);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.gpu_rank, 0);
  EXPECT_EQ(place.gpu_world_size, 1);
}

}  // namespace
}  // namespace muster::testing
