// Grids of ranks, as numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "muster/base/error.h"
#include "muster/base/mesh_shape.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string failure_of(std::string_view text, int num_ranks = 0) {
  try {
    parse_mesh(text, num_ranks);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(MeshShape, TheLastAxisCountsFastest) {
  const MeshShape shape = parse_mesh("dp=2,pp=3,tp=4");
  EXPECT_EQ(shape.num_ranks(), 24);
  EXPECT_THAT(shape.coordinates(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(shape.coordinates(1), ElementsAre(0, 0, 1));
  EXPECT_THAT(shape.coordinates(4), ElementsAre(0, 1, 0));
  EXPECT_THAT(shape.coordinates(23), ElementsAre(1, 2, 3));
  EXPECT_THAT(shape.group_of(5, {"tp"}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(shape.group_of(5, {"pp"}), ElementsAre(1, 5, 9));
  EXPECT_THAT(shape.group_of(5, {"dp"}), ElementsAre(5, 17));
  EXPECT_THAT(shape.group_of(5, {"dp", "pp"}), ElementsAre(1, 5, 9, 13, 17, 21));
  EXPECT_EQ(coordinates_text(shape, 5), "dp 0, pp 1, tp 1");
  EXPECT_EQ(to_string(shape), "dp=2,pp=3,tp=4");
}

// Of any grid: every rank in one group of each kind, and back from its coordinates.
TEST(MeshShape, GroupsPartitionTheRanks) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    MeshShape shape;
    const auto axes = 1 + random() % 4;
    for (size_t i = 0; i < axes; ++i)
      shape.axes.push_back({.name = cat("a", i), .size = static_cast<int>(1 + random() % 4)});
    for (int rank = 0; rank < shape.num_ranks(); ++rank)
      EXPECT_EQ(shape.rank_at(shape.coordinates(rank)), rank);
    for (const MeshAxis& axis : shape.axes) {
      std::vector<int> seen(static_cast<size_t>(shape.num_ranks()));
      for (const auto& group : shape.groups({axis.name})) {
        EXPECT_EQ(std::ssize(group), axis.size);
        for (const int rank : group)
          ++seen[static_cast<size_t>(rank)];
      }
      EXPECT_THAT(seen, ::testing::Each(1));
    }
  }
}

TEST(MeshShape, OneAxisMayTakeTheRest) {
  EXPECT_EQ(to_string(parse_mesh("dp=-1,tp=2", 8)), "dp=4,tp=2");
  EXPECT_EQ(to_string(parse_mesh("dp=-1", 3)), "dp=3");
}

TEST(MeshShape, WrongOnesAreRefused) {
  EXPECT_THAT(failure_of("dp"), HasSubstr("expected NAME=SIZE for each axis, got 'dp'"));
  EXPECT_THAT(failure_of("dp=two"), HasSubstr("got 'dp=two'"));
  EXPECT_THAT(failure_of("dp=2,"), HasSubstr("got ''"));
  EXPECT_THAT(failure_of("dp=0"),
              HasSubstr("sizes of at least 1, and one -1 for the rest, got dp=0"));
  EXPECT_THAT(failure_of("dp=-1,tp=-1", 4), HasSubstr("got tp=-1"));
  EXPECT_THAT(failure_of("d p=2"), HasSubstr("letters, digits and _ in an axis' name, got 'd p'"));
  EXPECT_THAT(failure_of("dp=2,dp=2"), HasSubstr("each axis once, got 'dp' twice"));
  EXPECT_THAT(failure_of("dp=2,tp=2", 8),
              HasSubstr("the 8 ranks there are, got dp=2,tp=2, which are 4"));
  EXPECT_THAT(failure_of("dp=-1,tp=3", 8), HasSubstr("product divides 8 ranks, got 3 without dp"));
  EXPECT_THAT(failure_of("dp=-1,tp=3"),
              HasSubstr("where the number of ranks is not known, got dp=-1"));
  EXPECT_THAT(failure_of("dp=100000,tp=100000"), HasSubstr("at most 1000000 ranks"));
  EXPECT_THROW(parse_mesh("dp=2").axis("tp"), Error);
}

}  // namespace
}  // namespace muster
