// A small all-reduce in shared memory without LibTorch around it: what the steps themselves cost.
//
//   shm_bench [RANKS]      2; ranks are threads of this process
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "muster/shm/collectives.h"
#include "tests/shm/ranks.h"

namespace {

using muster::shm::Collectives;
using muster::shm::Request;
using muster::shm::Team;

constexpr int kCalls = 5'000;
constexpr int kRounds = 5;

void time_calls(Team& team, uint64_t count) {
  Collectives collectives(team);
  std::vector<float> values(count, 1);
  const Request request{.kind = muster::shm::Kind::all_reduce,
                        .op = muster::shm::Op::max,
                        .type = muster::shm::Type::f32,
                        .count = count,
                        .out = {{.data = reinterpret_cast<std::byte*>(values.data()),
                                 .bytes = count * sizeof(float)}}};
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = muster::Clock::now();
    for (int call = 0; call < kCalls; ++call) {
      collectives.begin(request);
      collectives.finish(request, muster::Deadline(std::chrono::seconds(60)));
    }
    best = std::min(best, muster::seconds_since(start) / kCalls * 1e6);
  }
  if (team.rank() == 0)
    std::printf("%8zu bytes %10.2f us\n", static_cast<size_t>(count) * sizeof(float), best);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  std::printf("all-reduce in shared memory, %d ranks; least of %d means of %d calls\n",
              ranks,
              kRounds,
              kCalls);
  for (const uint64_t count : {1, 256, 2048}) {
    muster::shm::run_ranks(ranks, [&](Team& team) { time_calls(team, count); });
  }
}
