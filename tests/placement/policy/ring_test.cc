// The topology policy's rings against brute force and against another exact programme.
#include "muster/placement/policy/ring.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/placement/policy/topologies.h"

namespace muster {
namespace {

using testing::ElementsAre;

Bandwidths bandwidths_of(const Host& host) {
  const size_t count = host.gpus.size();
  Bandwidths all(count, std::vector<int64_t>(count));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      if (a != b)
        all[a][b] =
            std::llround(1000 * link_bandwidth(host.gpus[a], host.gpus[b], host.gpu_links[a][b]));
    }
  }
  return all;
}

Bandwidths random_bandwidths(unsigned seed, size_t count, unsigned num_values) {
  std::mt19937 random(seed);
  Bandwidths all(count, std::vector<int64_t>(count));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < a; ++b)
      all[a][b] = all[b][a] = static_cast<int64_t>(random() % num_values) * 7;
  }
  return all;
}

// Tries every ring there is.
class BruteForce {
 public:
  BruteForce(const Bandwidths& bandwidth, size_t count) : bandwidth_(bandwidth), count_(count) {
    extend();
  }
  RingQuality best{.slowest = -1, .total = -1};
  std::vector<size_t> first = {};  // in alphabetical order, of the best

 private:
  void extend() {
    if (ring_.size() == count_) {
      const RingQuality quality = ring_quality(bandwidth_, ring_);
      if (quality > best)
        first = ring_;  // rings come in alphabetical order
      best = std::max(best, quality);
      return;
    }
    for (size_t next = ring_.empty() ? 0 : ring_[0]; next < bandwidth_.size(); ++next) {
      if (std::find(ring_.begin(), ring_.end(), next) != ring_.end())
        continue;
      ring_.push_back(next);
      extend();
      ring_.pop_back();
    }
  }

  const Bandwidths& bandwidth_;
  const size_t count_;
  std::vector<size_t> ring_ = {};
};

// Another way to the best ring of each size: for each bandwidth from the fastest down, the longest
// rings over links at least as fast, by paths that start at the set's highest device.
std::vector<RingQuality> exact_qualities(const Bandwidths& bandwidth) {
  const size_t n = bandwidth.size();
  std::set<int64_t, std::greater<>> values;
  for (size_t a = 0; a < n; ++a)
    values.insert(bandwidth[a].begin(), bandwidth[a].begin() + static_cast<ptrdiff_t>(a));
  std::vector<RingQuality> best(n + 1, {.slowest = -1, .total = -1});
  for (const int64_t least : values) {
    std::vector<std::vector<int64_t>> longest(n, std::vector<int64_t>(size_t{1} << n, -1));
    for (size_t top = 0; top < n; ++top)
      longest[top][size_t{1} << top] = 0;
    for (size_t set = 1; set < size_t{1} << n; ++set) {
      size_t top = n - 1;
      while ((set >> top & 1U) == 0)
        --top;
      size_t size = 0;
      for (size_t i = 0; i < n; ++i)
        size += set >> i & 1U;
      for (size_t last = 0; last <= top; ++last) {
        const int64_t length = longest[last][set];
        if (length < 0)
          continue;
        if (size > 1 && last != top && bandwidth[last][top] >= least && best[size].slowest < 0) {
          // Sizes that a faster bandwidth served already are done; of this one all rings are looked
          // at.
          best[size].total = std::max(best[size].total, length + bandwidth[last][top]);
        }
        for (size_t next = 0; next < top; ++next) {
          if ((set >> next & 1U) != 0 || bandwidth[last][next] < least)
            continue;
          int64_t& known = longest[next][set | size_t{1} << next];
          known = std::max(known, length + bandwidth[last][next]);
        }
      }
    }
    for (RingQuality& quality : best) {
      if (quality.slowest < 0 && quality.total >= 0)
        quality.slowest = least;
    }
  }
  return best;
}

void check_ring(const Bandwidths& bandwidth, const std::vector<size_t>& ring, size_t count) {
  ASSERT_EQ(ring.size(), count);
  ASSERT_EQ(std::set<size_t>(ring.begin(), ring.end()).size(), count) << "each device once";
  for (const size_t device : ring)
    ASSERT_LT(device, bandwidth.size());
}

void check_never_worse_than_sequential(const Bandwidths& bandwidth,
                                       const std::vector<size_t>& ring) {
  std::vector<size_t> sequential(ring.size());
  std::iota(sequential.begin(), sequential.end(), 0);
  ASSERT_GE(ring_quality(bandwidth, ring), ring_quality(bandwidth, sequential));
}

// Every number of devices, against every ring there is.
void check_against_brute_force(const Bandwidths& bandwidth) {
  for (size_t count = 1; count <= bandwidth.size(); ++count) {
    SCOPED_TRACE(cat(count, " of ", bandwidth.size()));
    const auto ring = best_ring(bandwidth, count);
    check_ring(bandwidth, ring, count);
    if (count == 1)
      continue;
    const BruteForce brute(bandwidth, count);
    ASSERT_EQ(ring_quality(bandwidth, ring).slowest, brute.best.slowest);
    ASSERT_EQ(ring_quality(bandwidth, ring).total, brute.best.total);
    ASSERT_EQ(ring, brute.first) << "of several best ones the first in alphabetical order";
    check_never_worse_than_sequential(bandwidth, ring);
  }
}

TEST(Ring, QualityIsTheSlowestLinkThenTheSum) {
  const Bandwidths bandwidth = {{0, 5, 3}, {5, 0, 4}, {3, 4, 0}};
  EXPECT_EQ(ring_quality(bandwidth, {0, 1, 2}), (RingQuality{.slowest = 3, .total = 12}));
  EXPECT_EQ(ring_quality(bandwidth, {0, 1}), (RingQuality{.slowest = 5, .total = 10}));
  EXPECT_LT((RingQuality{.slowest = 3, .total = 99}), (RingQuality{.slowest = 4, .total = 12}));
}

TEST(Ring, EqualsBruteForceOnKnownMachines) {
  for (const Host& host : {dgx1(), dual_socket_pcie(), workstation(), mi250x()}) {
    SCOPED_TRACE(host.gpus[0].model);
    check_against_brute_force(bandwidths_of(host));
  }
}

TEST(Ring, EqualsBruteForceOnRandomMachines) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    check_against_brute_force(bandwidths_of(random_links(seed, 2 + static_cast<int>(seed % 6))));
    check_against_brute_force(random_bandwidths(seed, 2 + seed % 6, 2 + seed % 40));
    if (testing::Test::HasFatalFailure())
      return;
  }
  check_against_brute_force(random_bandwidths(7, 8, 30));
}

TEST(Ring, SixteenEqualAnotherExactProgramme) {
  for (const unsigned num_values : {3U, 5U}) {
    const Bandwidths bandwidth = random_bandwidths(num_values, 16, num_values);
    const auto expected = exact_qualities(bandwidth);
    for (const size_t count :
         num_values == 3 ? std::vector<size_t>{2, 5, 8} : std::vector<size_t>{11, 16}) {
      SCOPED_TRACE(cat(count, " of 16, ", num_values, " bandwidths"));
      const auto ring = best_ring(bandwidth, count);
      check_ring(bandwidth, ring, count);
      ASSERT_EQ(ring_quality(bandwidth, ring), expected[count]);
      check_never_worse_than_sequential(bandwidth, ring);
    }
  }
}

TEST(Ring, TheOtherProgrammeIsRightItself) {
  const Bandwidths bandwidth = random_bandwidths(1, 7, 12);
  const auto exact = exact_qualities(bandwidth);
  for (size_t count = 2; count <= 7; ++count)
    EXPECT_EQ(exact[count], BruteForce(bandwidth, count).best);
}

TEST(Ring, BehindASwitchTheOrderIsTheIndex) {
  EXPECT_THAT(best_ring(bandwidths_of(dgx2()), 5), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Ring, SeventeenEqualTheExactProgramme) {
  const Bandwidths bandwidth = random_bandwidths(11, 17, 4);
  const auto expected = exact_qualities(bandwidth);
  for (const size_t count : {size_t{6}, size_t{13}, size_t{17}}) {
    const auto ring = best_ring(bandwidth, count);
    check_ring(bandwidth, ring, count);
    EXPECT_EQ(ring_quality(bandwidth, ring), expected[count]) << count << " of 17";
  }
}

// A ring of fast links hidden in a shuffled machine: plain, among others that are as fast, or of
// cliques of four that one fast link joins each with the next.
enum class Hidden { plain, among_others, of_cliques };

Bandwidths hidden_ring(unsigned seed, size_t count, size_t extra, Hidden kind) {
  std::mt19937 random(seed);
  std::vector<size_t> hidden(count + extra);
  std::iota(hidden.begin(), hidden.end(), size_t{0});
  std::shuffle(hidden.begin(), hidden.end(), random);
  Bandwidths all(hidden.size(), std::vector<int64_t>(hidden.size()));
  const auto join = [&](size_t a, size_t b, int64_t link) {
    all[hidden[a]][hidden[b]] = all[hidden[b]][hidden[a]] = link;
  };
  for (size_t a = 0; a < hidden.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const bool other = kind == Hidden::among_others && random() % 20 == 0;
      const bool together = kind == Hidden::of_cliques && a < count && a / 4 == b / 4;
      join(a, b, other || together ? 100 : 10 + static_cast<int64_t>(random() % 5));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (kind != Hidden::of_cliques || i % 4 == 3)
      join(i, (i + 1) % count, 100);
  }
  return all;
}

TEST(Ring, HiddenRingsOfUpTo64DevicesAreFound) {
  for (const size_t count : {size_t{20}, size_t{32}, size_t{48}, size_t{64}}) {
    for (const Hidden kind : {Hidden::plain, Hidden::among_others, Hidden::of_cliques}) {
      const size_t extra = kind == Hidden::among_others ? 0 : 3;
      const Bandwidths bandwidth = hidden_ring(static_cast<unsigned>(count), count, extra, kind);
      const auto ring = best_ring(bandwidth, count);
      check_ring(bandwidth, ring, count);
      EXPECT_EQ(ring_quality(bandwidth, ring).slowest, 100)
          << count << " devices, kind " << static_cast<int>(kind);
    }
  }
}

TEST(Ring, ManyDevicesAreNeverWorseThanSequential) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    const size_t count = 17 + seed;
    const Bandwidths bandwidth = random_bandwidths(seed, count, 50);
    for (const size_t k : {size_t{2}, size_t{8}, count}) {
      const auto ring = best_ring(bandwidth, k);
      check_ring(bandwidth, ring, k);
      check_never_worse_than_sequential(bandwidth, ring);
      ASSERT_EQ(best_ring(bandwidth, k), ring);
    }
  }
}

// Two far apart groups, each other GPU of one: going along the indices crosses over all the time.
TEST(Ring, TheSearchFindsTheObvious) {
  Bandwidths bandwidth(24, std::vector<int64_t>(24, 10));
  for (size_t a = 0; a < 24; ++a) {
    for (size_t b = 0; b < 24; ++b) {
      if (a % 2 == b % 2)
        bandwidth[a][b] = 100;
    }
  }
  EXPECT_EQ(ring_quality(bandwidth, best_ring(bandwidth, 12)),
            (RingQuality{.slowest = 100, .total = 1200}));
  EXPECT_EQ(ring_quality(bandwidth, best_ring(bandwidth, 24)),
            (RingQuality{.slowest = 10, .total = 2220}));
}

}  // namespace
}  // namespace muster
