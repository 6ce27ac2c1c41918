// Every collective at sizes on both sides of every limit, for teams that fit the machine and that
// do not, against what it means.
#include "muster/shm/collectives.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <latch>
#include <random>
#include <span>

#include "muster/base/strings.h"
#include "tests/shm/ranks.h"

namespace muster::shm {
namespace {

using testing::HasSubstr;

// Elements of int64: a slot's worth, a stage's, several rounds; with ends that fit nothing.
constexpr uint64_t kCounts[] = {0, 1, 5, 100, 1024, 1025, 3333, 32768, 32769, 100'003};

std::vector<int64_t> values(int rank, uint64_t count, int64_t salt = 0) {
  std::vector<int64_t> made(count);
  for (uint64_t i = 0; i < count; ++i)
    made[i] = static_cast<int64_t>(i * 7 + 1) * (rank + 1) + salt;
  return made;
}

Part part_of(std::vector<int64_t>& values) {
  return {.data = reinterpret_cast<std::byte*>(values.data()),
          .bytes = values.size() * sizeof(int64_t)};
}

void run(Collectives& collectives, const Request& request) {
  collectives.begin(request);
  collectives.finish(request, Deadline(std::chrono::seconds(20)));
}

class Sizes : public testing::TestWithParam<int> {};

TEST_P(Sizes, AllReduceAndReduce) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    const int n = team.size();
    for (const uint64_t count : kCounts) {
      auto expected = values(0, count);
      for (int rank = 1; rank < n; ++rank) {
        const auto theirs = values(rank, count);
        for (uint64_t i = 0; i < count; ++i)
          expected[i] += theirs[i];
      }
      auto mine = values(team.rank(), count);
      run(collectives,
          {.kind = Kind::all_reduce, .type = Type::i64, .count = count, .out = {part_of(mine)}});
      ASSERT_EQ(mine, expected) << count;
      const int root = static_cast<int>(count) % n;
      auto in = values(team.rank(), count);
      std::vector<int64_t> out(count);
      Request request{.kind = Kind::reduce,
                      .type = Type::i64,
                      .root = root,
                      .count = count,
                      .in = {part_of(in)}};
      if (team.rank() == root)
        request.out = {part_of(out)};
      run(collectives, request);
      ASSERT_EQ(in, values(team.rank(), count)) << "the input is left alone";
      if (team.rank() == root) {
        ASSERT_EQ(out, expected) << count;
      }
    }
  });
}

TEST_P(Sizes, ReduceScatter) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    const int n = team.size();
    for (const uint64_t count : kCounts) {
      std::vector<std::vector<int64_t>> in;
      Request request{.kind = Kind::reduce_scatter, .type = Type::i64, .count = count};
      for (int to = 0; to < n; ++to)
        in.push_back(values(team.rank(), count, to * 1000));
      for (auto& part : in)
        request.in.push_back(part_of(part));
      std::vector<int64_t> out(count);
      request.out = {part_of(out)};
      run(collectives, request);
      std::vector<int64_t> expected(count);
      for (int rank = 0; rank < n; ++rank) {
        const auto theirs = values(rank, count, team.rank() * 1000);
        for (uint64_t i = 0; i < count; ++i)
          expected[i] += theirs[i];
      }
      ASSERT_EQ(out, expected) << count;
    }
  });
}

TEST_P(Sizes, BroadcastGatherScatter) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    const int n = team.size();
    for (const uint64_t count : kCounts) {
      const int root = static_cast<int>(count / 3) % n;
      const bool at_root = team.rank() == root;
      auto one = values(team.rank(), count);
      run(collectives,
          {.kind = Kind::broadcast,
           .type = Type::i64,
           .root = root,
           .count = count,
           .out = {part_of(one)}});
      ASSERT_EQ(one, values(root, count)) << count;

      std::vector<std::vector<int64_t>> all(static_cast<size_t>(n), std::vector<int64_t>(count));
      auto mine = values(team.rank(), count);
      Request gather{.kind = Kind::gather,
                     .type = Type::i64,
                     .root = root,
                     .count = count,
                     .in = {part_of(mine)}};
      if (at_root)
        for (auto& part : all)
          gather.out.push_back(part_of(part));
      run(collectives, gather);
      for (int rank = 0; rank < n && at_root; ++rank)
        ASSERT_EQ(all[static_cast<size_t>(rank)], values(rank, count));

      std::vector<std::vector<int64_t>> dealt;
      std::vector<int64_t> got(count);
      Request scatter{.kind = Kind::scatter,
                      .type = Type::i64,
                      .root = root,
                      .count = count,
                      .out = {part_of(got)}};
      for (int to = 0; to < n; ++to)
        dealt.push_back(values(to, count, 5));
      if (at_root)
        for (auto& part : dealt)
          scatter.in.push_back(part_of(part));
      run(collectives, scatter);
      ASSERT_EQ(got, values(team.rank(), count, 5)) << count;
    }
  });
}

TEST_P(Sizes, AllGatherAndAllToAll) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    const int n = team.size();
    for (const uint64_t count : kCounts) {
      std::vector<std::vector<int64_t>> all(static_cast<size_t>(n), std::vector<int64_t>(count));
      auto mine = values(team.rank(), count);
      Request gather{
          .kind = Kind::all_gather, .type = Type::i64, .count = count, .in = {part_of(mine)}};
      for (auto& part : all)
        gather.out.push_back(part_of(part));
      run(collectives, gather);
      for (int rank = 0; rank < n; ++rank)
        ASSERT_EQ(all[static_cast<size_t>(rank)], values(rank, count)) << count;

      // Rank r sends count + r + to elements to rank `to`.
      const auto amount = [&](int from, int to) {
        return count + static_cast<uint64_t>(from + to);
      };
      std::vector<std::vector<int64_t>> sent, got;
      Request exchange{.kind = Kind::all_to_all, .type = Type::i64};
      for (int peer = 0; peer < n; ++peer) {
        sent.push_back(values(team.rank(), amount(team.rank(), peer), peer));
        got.emplace_back(amount(peer, team.rank()));
      }
      for (auto& part : sent)
        exchange.in.push_back(part_of(part));
      for (auto& part : got)
        exchange.out.push_back(part_of(part));
      run(collectives, exchange);
      for (int peer = 0; peer < n; ++peer)
        ASSERT_EQ(got[static_cast<size_t>(peer)],
                  values(peer, amount(peer, team.rank()), team.rank()))
            << count;
    }
  });
}

// What all can see is reduced where it is.
TEST_P(Sizes, AllReduceInPlace) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    for (const uint64_t count : {uint64_t{1025}, uint64_t{100'003}, uint64_t{300'000}}) {
      const size_t offset = team.layout().arena(team.rank());
      team.memory()->reserve(offset, count * sizeof(float));
      auto* const data = reinterpret_cast<float*>(team.at(offset));
      for (uint64_t i = 0; i < count; ++i)
        data[i] = static_cast<float>(i % 1000) + static_cast<float>(team.rank());
      run(collectives,
          {.kind = Kind::all_reduce,
           .op = Op::avg,
           .type = Type::f32,
           .count = count,
           .out = {{.data = team.at(offset), .bytes = count * sizeof(float)}}});
      const float middle = static_cast<float>(team.size() - 1) / 2;
      for (uint64_t i = 0; i < count; ++i)
        ASSERT_EQ(data[i], static_cast<float>(i % 1000) + middle) << i;
    }
  });
}

// A rank that changes its data after the operation changes nobody's result.
TEST_P(Sizes, AllGatherAndReduceScatterInPlace) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    const uint64_t n = team.size();
    for (const uint64_t count : {uint64_t{1025}, uint64_t{100'003}}) {
      const size_t offset = team.layout().arena(team.rank());
      team.memory()->reserve(offset, n * count * sizeof(int64_t));
      const std::span<int64_t> shared(reinterpret_cast<int64_t*>(team.at(offset)), n * count);
      const auto part_at = [&](uint64_t part) {
        return Part{.data = team.at(offset) + part * count * sizeof(int64_t),
                    .bytes = count * sizeof(int64_t)};
      };
      std::ranges::copy(values(team.rank(), count), shared.begin());
      std::vector<std::vector<int64_t>> all(n, std::vector<int64_t>(count));
      Request gather{
          .kind = Kind::all_gather, .type = Type::i64, .count = count, .in = {part_at(0)}};
      for (auto& part : all)
        gather.out.push_back(part_of(part));
      run(collectives, gather);
      std::ranges::fill(shared, -1);
      for (int rank = 0; rank < team.size(); ++rank)
        ASSERT_EQ(all[rank], values(rank, count)) << count;

      std::vector<int64_t> sum(count), expected(count);
      Request scatter{
          .kind = Kind::reduce_scatter, .type = Type::i64, .count = count, .out = {part_of(sum)}};
      for (uint64_t to = 0; to < n; ++to) {
        std::ranges::copy(values(team.rank(), count, to), shared.begin() + to * count);
        scatter.in.push_back(part_at(to));
      }
      run(collectives, scatter);
      std::ranges::fill(shared, -1);
      for (int rank = 0; rank < team.size(); ++rank) {
        const auto theirs = values(rank, count, team.rank());
        for (uint64_t i = 0; i < count; ++i)
          expected[i] += theirs[i];
      }
      ASSERT_EQ(sum, expected) << count;
    }
  });
}

TEST_P(Sizes, ManyOfAllSizesInARow) {
  run_ranks(GetParam(), [](Team& team) {
    Collectives collectives(team);
    std::mt19937 random(17);  // the same on every rank
    for (int i = 0; i < 300; ++i) {
      const uint64_t count = random() % (random() % 4 == 0 ? 60'000 : 600);
      auto mine = values(team.rank(), count, i);
      run(collectives,
          {.kind = Kind::all_reduce,
           .op = Op::max,
           .type = Type::i64,
           .count = count,
           .out = {part_of(mine)}});
      ASSERT_EQ(mine, values(team.size() - 1, count, i)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, Sizes, testing::Values(1, 2, 3, 5, 8));

TEST(Collectives, CallsThatDifferAreShownOnEveryRank) {
  run_ranks(3, [](Team& team) {
    Collectives collectives(team);
    const auto expect =
        [&](const Request& request, const std::string& one, const std::string& other) {
          try {
            run(collectives, request);
            FAIL() << "no error";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
            EXPECT_THAT(error.message(), HasSubstr(one));
            EXPECT_THAT(error.message(), HasSubstr(other));
          }
        };
    std::vector<int64_t> data(4000);
    const bool odd = team.rank() == 1;
    const uint64_t count = odd ? 3 : 4;
    expect({.kind = Kind::all_reduce, .type = Type::i64, .count = count, .out = {part_of(data)}},
           "'all_reduce sum Long, 3 elements' on rank 1",
           "'all_reduce sum Long, 4 elements' on rank");
    expect({.kind = Kind::all_reduce,
            .type = Type::i64,
            .count = odd ? 4000U : 1U,
            .out = {part_of(data)}},
           "4000 elements",
           "1 elements");
    expect({.kind = odd ? Kind::broadcast : Kind::all_reduce,
            .type = Type::i64,
            .count = 4,
            .out = {part_of(data)}},
           "broadcast from 0",
           "all_reduce sum");
    expect({.kind = Kind::all_reduce,
            .op = odd ? Op::max : Op::sum,
            .type = Type::i64,
            .count = 4,
            .out = {part_of(data)}},
           "all_reduce max",
           "all_reduce sum");
    expect({.kind = Kind::all_reduce,
            .type = odd ? Type::f64 : Type::i64,
            .count = 4,
            .out = {part_of(data)},
            .num_dims = 2,
            .dims = {2, 2}},
           "Double [2, 2]",
           "Long [2, 2]");
    expect({.kind = Kind::all_reduce,
            .type = Type::i64,
            .count = 4,
            .out = {part_of(data)},
            .num_dims = odd ? 1 : 2,
            .dims = {odd ? 4 : 2, odd ? 0 : 2}},
           "[4]",
           "[2, 2]");
    // The team is as good as before.
    std::vector<int64_t> one{1};
    run(collectives,
        {.kind = Kind::all_reduce, .type = Type::i64, .count = 1, .out = {part_of(one)}});
    EXPECT_EQ(one[0], 3);
  });
}

TEST(Collectives, SplitsThatDoNotFitAreShownOnEveryRank) {
  run_ranks(2, [](Team& team) {
    Collectives collectives(team);
    std::vector<int64_t> data(4);
    const Part two{.data = part_of(data).data, .bytes = 16},
        one{.data = part_of(data).data, .bytes = 8};
    const Request request{
        .kind = Kind::all_to_all, .type = Type::i64, .in = {one, two}, .out = {one, one}};
    try {
      run(collectives, request);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("rank 0 to send as many bytes as rank 1 expects"));
      EXPECT_THAT(error.message(), HasSubstr("got 16 and 8 bytes"));
    }
  });
}

TEST(Collectives, WhatTheTypeDoesNotHaveIsRefusedBeforeAnythingIsSaid) {
  run_ranks(2, [](Team& team) {
    Collectives collectives(team);
    std::vector<int64_t> data{1};
    EXPECT_THROW(collectives.begin({.kind = Kind::all_reduce,
                                    .op = Op::avg,
                                    .type = Type::i64,
                                    .count = 1,
                                    .out = {part_of(data)}}),
                 Error);
    run(collectives,
        {.kind = Kind::all_reduce, .type = Type::i64, .count = 1, .out = {part_of(data)}});
    EXPECT_EQ(data[0], 2);
  });
}

TEST(Collectives, RanksThatArePartOfAGroupHaveItsNumbersInMessages) {
  const auto body = [](Team& team) {
    if (team.rank() == 1)
      return;  // leaves
    Collectives collectives(team);
    try {
      run(collectives, {.kind = Kind::barrier});
      FAIL() << "the other has left";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("barrier #1 on rank 3 of 8: rank 5 left the group"));
    }
  };
  run_ranks(2, body, std::chrono::seconds(20), {.ranks = {3, 5}, .size = 8});
}

// Rank 1 has come to the last step, waited in vain, and uses its memory for something else.
TEST(Collectives, WhatIsReadOfARankThatHasGivenUpIsAnError) {
  std::latch has_given_up(1);
  run_ranks(2, [&](Team& team) {
    Collectives collectives(team);
    constexpr uint64_t kCount = 4000;
    const size_t offset = team.layout().arena(team.rank());
    team.memory()->reserve(offset, kCount * sizeof(int64_t));
    const Part mine{.data = team.at(offset), .bytes = kCount * sizeof(int64_t)};
    std::vector<int64_t> first(kCount), second(kCount);
    const Request request{.kind = Kind::all_gather,
                          .type = Type::i64,
                          .count = kCount,
                          .in = {mine},
                          .out = {part_of(first), part_of(second)}};
    collectives.begin(request);
    if (team.rank() == 1) {
      team.arrive();
      team.give_up();
      has_given_up.count_down();
      return;
    }
    has_given_up.wait();
    try {
      collectives.finish(request, Deadline(std::chrono::seconds(20)));
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_failed);
      EXPECT_THAT(error.message(), HasSubstr("rank 1 failed before, or gave up waiting"));
    }
  });
}

// Else the others would take its next arrival for the end of what it gave up.
TEST(Collectives, ARankThatHasGivenUpBeginsNothing) {
  run_ranks(2, [](Team& team) {
    Collectives collectives(team);
    std::vector<int64_t> data{1};
    const Request request{
        .kind = Kind::all_reduce, .type = Type::i64, .count = 1, .out = {part_of(data)}};
    run(collectives, request);
    if (team.rank() == 0) {
      team.give_up();
      EXPECT_THROW(collectives.begin(request), Error);
      return;
    }
    try {
      run(collectives, request);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_failed) << error.message();
    }
  });
}

}  // namespace
}  // namespace muster::shm
