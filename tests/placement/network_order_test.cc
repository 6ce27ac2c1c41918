#include "muster/placement/network_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "muster/base/mesh_shape.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Names = std::vector<std::string>;

Names ordered(const SwitchPaths& paths,
              const Names& hosts,
              const std::vector<int64_t>& blocks = {}) {
  Names names;
  for (const size_t at : network_order(paths, hosts, blocks))
    names.push_back(hosts.at(at));
  return names;
}

// The path of each host as far as `depth` switches, in an order of hosts.
std::vector<Names> places(const SwitchPaths& paths, const Names& hosts, size_t depth) {
  std::vector<Names> all;
  for (const std::string& host : hosts) {
    Names path = switches_of(paths, host);
    path.resize(std::min(depth, path.size()));
    all.push_back(path);
  }
  return all;
}

// How often a ring of the hosts changes the switch at that depth.
int64_t changes(const SwitchPaths& paths, const Names& hosts, size_t depth) {
  const auto at = places(paths, hosts, depth);
  int64_t count = 0;
  for (size_t i = 0; i < at.size(); ++i)
    count += at[i] != at[(i + 1) % at.size()] ? 1 : 0;
  return count;
}

// How many blocks of so many hosts lie below one switch at that depth.
int64_t whole_blocks(const SwitchPaths& paths, const Names& hosts, size_t block, size_t depth) {
  const auto at = places(paths, hosts, depth);
  int64_t count = 0;
  for (size_t first = 0; first + block <= at.size(); first += block) {
    const std::set<Names> different(at.begin() + static_cast<int>(first),
                                    at.begin() + static_cast<int>(first + block));
    count += different.size() == 1 ? 1 : 0;
  }
  return count;
}

TEST(NetworkOrder, HostsBelowOneSwitchFollowEachOther) {
  const SwitchPaths paths{
      {"a", {"s", "l2"}}, {"b", {"s", "l1"}}, {"c", {"s", "l2"}}, {"d", {"s", "l1"}}};
  EXPECT_THAT(ordered(paths, {"a", "b", "c", "d"}), ElementsAre("a", "c", "b", "d"));
  EXPECT_THAT(ordered(paths, {"d", "c", "b", "a"}), ElementsAre("d", "b", "c", "a"));
}

TEST(NetworkOrder, WithoutAnyNetworkTheOrderStays) {
  EXPECT_THAT(ordered({}, {"b", "a"}, {2}), ElementsAre("b", "a"));
  EXPECT_THAT(ordered({{"x", {"l1"}}}, {"b", "a"}), ElementsAre("b", "a"));
  EXPECT_THAT(ordered({{"x", {"l1"}}}, {}), IsEmpty());
}

TEST(NetworkOrder, AHostIsFoundWithoutItsDomain) {
  EXPECT_THAT(switches_of({{"a", {"l1"}}}, "a.cluster.example"), ElementsAre("l1"));
  EXPECT_THAT(switches_of({{"a", {"l1"}}}, "b.cluster.example"), IsEmpty());
}

// Three hosts below l1 and three below l2: pairs first, and the two that are left over are one
// more.
TEST(NetworkOrder, BlocksOfAMeshStayBelowOneSwitch) {
  SwitchPaths paths;
  for (const char* host : {"a", "b", "c"})
    paths[host] = {"s", "l1"};
  for (const char* host : {"d", "e", "f"})
    paths[host] = {"s", "l2"};
  EXPECT_THAT(ordered(paths, {"a", "b", "c", "d", "e", "f"}, {2}),
              ElementsAre("a", "b", "d", "e", "c", "f"));
}

TEST(NetworkOrder, BlocksOfAMesh) {
  const auto blocks = [](const char* mesh, std::optional<int64_t> ranks, int64_t hosts = 16) {
    return blocks_of_mesh(parse_axes(mesh), ranks, hosts);
  };
  EXPECT_THAT(blocks("dp=4,pp=2,tp=16", 8), ElementsAre(2, 4));
  EXPECT_THAT(blocks("dp=4,tp=8", 8), IsEmpty());
  EXPECT_THAT(blocks("dp=-1,tp=16", 8), ElementsAre(2));
  EXPECT_THAT(blocks("dp=2,pp=-1,tp=16", 8), ElementsAre(2));
  EXPECT_THAT(blocks("dp=2,tp=12", 8), IsEmpty()) << "a group ends within a host";
  EXPECT_THAT(blocks("dp=2,pp=2,tp=12", 8), ElementsAre(3));
  EXPECT_THAT(blocks("dp=3,tp=4", {}, 6), ElementsAre(2)) << "two ranks a host";
  EXPECT_THAT(blocks("dp=3,tp=4", {}, 5), IsEmpty()) << "the mesh does not fit the hosts";
  EXPECT_THAT(blocks("dp=-1,tp=16", {}), IsEmpty()) << "nobody knows how many ranks a host has";
}

// Every order of up to six hosts below up to three switches, with blocks of 2 and of 2 and 4.
TEST(NetworkOrder, NoOrderIsBetter) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const size_t count = 2 + random() % 5;
    Names hosts;
    SwitchPaths paths;
    for (size_t i = 0; i < count; ++i) {
      hosts.push_back(cat("h", i));
      const auto rack = random() % 3;
      paths[hosts.back()] = {cat("spine", rack / 2), cat("leaf", rack)};
    }
    const auto ring = ordered(paths, hosts);
    const auto pairs = ordered(paths, hosts, {2});
    const auto fours = ordered(paths, hosts, {2, 4});
    Names other = hosts;
    std::ranges::sort(other);
    do {
      for (const size_t depth : {1, 2}) {
        EXPECT_LE(changes(paths, ring, depth), changes(paths, other, depth)) << seed;
        EXPECT_GE(whole_blocks(paths, pairs, 2, depth), whole_blocks(paths, other, 2, depth))
            << seed;
        EXPECT_GE(whole_blocks(paths, fours, 2, depth), whole_blocks(paths, other, 2, depth))
            << seed;
      }
    } while (std::ranges::next_permutation(other).found && !HasFailure());
  }
}

// A fleet in its best order, shuffled: three levels, racks of different sizes.
TEST(NetworkOrder, FindsAPlantedOrderOfAThousandHosts) {
  Names hosts;
  SwitchPaths paths;
  std::mt19937 random(7);
  for (int rack = 0; hosts.size() < 1000; ++rack) {
    const size_t size = 4 * (1 + random() % 8);
    for (size_t i = 0; i < size; ++i) {
      hosts.push_back(cat("h", hosts.size()));
      paths[hosts.back()] = {cat("core", rack / 20), cat("spine", rack / 5), cat("leaf", rack)};
    }
  }
  Names shuffled = hosts;
  std::ranges::shuffle(shuffled, random);
  for (const std::vector<int64_t>& blocks : {std::vector<int64_t>{}, {2, 4}}) {
    const Names found = ordered(paths, shuffled, blocks);
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(hosts));
    for (const size_t depth : {1, 2, 3}) {
      EXPECT_EQ(changes(paths, found, depth), changes(paths, hosts, depth));
      EXPECT_EQ(whole_blocks(paths, found, 4, depth), whole_blocks(paths, hosts, 4, depth));
    }
  }
}

}  // namespace
}  // namespace muster
