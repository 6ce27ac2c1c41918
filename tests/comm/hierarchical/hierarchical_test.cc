// Ranks that take themselves to be on hosts of their own, as threads.
#include "muster/comm/hierarchical/hierarchical.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <future>
#include <thread>

#include "muster/base/clock.h"
#include "muster/comm/gloo/gloo.h"

namespace muster {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr std::chrono::minutes kFar{10};
constexpr double kAtOnce = 60;  // seconds: on a busy machine; far from the deadline

// Two ranks; `body` runs as rank 0, while rank 1, which has joined too, does nothing: its host has
// lost its power.
void with_a_silent_host(
    const std::function<BackendPtr(const c10::intrusive_ptr<c10d::Store>&, int)>& make,
    const std::function<void(BackendPtr)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> over;
  std::thread silent([&] {
    const BackendPtr backend = make(store, 1);
    over.get_future().wait();
  });
  body(make(store, 0));
  over.set_value();
  silent.join();
}

BackendPtr two_hosts(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  return make_hierarchical(
      store, rank, {"a", "b"}, kFar, [](const auto& part, int number, int size) {
        return make_gloo(part, number, size, kFar, "127.0.0.1");
      });
}

c10::intrusive_ptr<c10d::Work> start_all_reduce(c10d::Backend& backend) {
  std::vector<at::Tensor> tensors{torch::ones({1000})};
  return backend.allreduce(tensors, c10d::AllreduceOptions());
}

TEST(Hierarchical, AbortEndsAWaitForAHostThatIsSilent) {
  with_a_silent_host(two_hosts, [](BackendPtr backend) {
    const auto work = start_all_reduce(*backend);
    const auto start = Clock::now();
    backend->abort();
    EXPECT_ANY_THROW(work->wait());
    backend.reset();
    EXPECT_LT(seconds_since(start), kAtOnce);
  });
}

TEST(Hierarchical, ShutdownDoesNotWaitForAHostThatIsSilent) {
  with_a_silent_host(two_hosts, [](BackendPtr backend) {
    const auto work = start_all_reduce(*backend);
    const auto start = Clock::now();
    backend->shutdown();
    EXPECT_ANY_THROW(work->wait());
    backend.reset();
    EXPECT_LT(seconds_since(start), kAtOnce);
  });
}

// A rank for each of `hosts`; `body` runs as each of them.
void on_hosts(const std::vector<std::string>& hosts,
              const std::function<void(c10d::Backend&, int rank)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < std::ssize(hosts); ++rank) {
    ranks.emplace_back([&store, &hosts, &body, rank] {
      const BackendPtr backend =
          make_hierarchical(store, rank, hosts, kFar, [](const auto& part, int number, int size) {
            return make_gloo(part, number, size, kFar, "127.0.0.1");
          });
      body(*backend, rank);
    });
  }
  for (std::thread& rank : ranks)
    rank.join();
}

void on_two_hosts_of_two(const std::function<void(c10d::Backend&, int rank)>& body) {
  on_hosts({"a", "b", "a", "b"}, body);  // they take turns
}

// Small whole numbers, of which every type has the sums and products.
at::Tensor values_of(int rank, at::ScalarType type, at::IntArrayRef shape) {
  const int64_t count = c10::multiply_integers(shape);
  return (torch::arange(count).add(rank).remainder(3) + 1).view(shape).to(type);
}

TEST(Hierarchical, AllGatherPutsEveryRanksPartInItsPlace) {
  for (const auto type : {at::kFloat, at::kBool, at::kBFloat16, at::kLong, at::kComplexDouble}) {
    on_two_hosts_of_two([type](c10d::Backend& backend, int rank) {
      at::Tensor output = torch::zeros({8, 3}, type);
      at::Tensor input = values_of(rank, type, {3, 2}).t();  // not contiguous
      backend._allgather_base(output, input, {})->wait();
      std::vector<at::Tensor> expected;
      for (int other = 0; other < 4; ++other)
        expected.push_back(values_of(other, type, {3, 2}).t());
      EXPECT_TRUE(torch::equal(output, torch::cat(expected))) << type;
    });
  }
}

TEST(Hierarchical, ReduceScatterGivesEachRankItsPart) {
  using c10d::ReduceOp;
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kInt, at::kChar}) {
    for (const auto op :
         {ReduceOp::SUM, ReduceOp::MIN, ReduceOp::MAX, ReduceOp::PRODUCT, ReduceOp::AVG}) {
      if (op == ReduceOp::AVG && !at::isFloatingType(type))
        continue;
      on_two_hosts_of_two([type, op](c10d::Backend& backend, int rank) {
        at::Tensor output = torch::zeros({5, 2}, type).t();  // not contiguous
        at::Tensor input = values_of(rank, type, {8, 5});
        c10d::ReduceScatterOptions options;
        options.reduceOp = op;
        backend._reduce_scatter_base(output, input, options)->wait();
        std::vector<at::Tensor> inputs;
        for (int other = 0; other < 4; ++other)
          inputs.push_back(values_of(other, at::kDouble, {8, 5}));
        const at::Tensor all = torch::stack(inputs);
        const at::Tensor whole = op == ReduceOp::SUM   ? all.sum(0)
                                 : op == ReduceOp::AVG ? all.mean(0)
                                 : op == ReduceOp::MIN ? all.amin(0)
                                 : op == ReduceOp::MAX ? all.amax(0)
                                                       : all.prod(0);
        EXPECT_TRUE(torch::equal(output, whole.slice(0, 2 * rank, 2 * rank + 2).to(type)))
            << type << output;
      });
    }
  }
}

// Halves whose sum is more than their type has.
TEST(Hierarchical, MeansOfHalvesDoNotOverflow) {
  on_two_hosts_of_two([](c10d::Backend& backend, int) {
    at::Tensor output = torch::zeros({1}, at::kHalf);
    at::Tensor input = torch::full({4}, 60000, at::kHalf);
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    backend._reduce_scatter_base(output, input, options)->wait();
    EXPECT_EQ(output.item<float>(), torch::full({1}, 60000, at::kHalf).item<float>());
  });
}

TEST(Hierarchical, HostsMayHaveUnequallyManyRanks) {
  on_hosts({"a", "a", "b"}, [](c10d::Backend& backend, int rank) {
    at::Tensor gathered = torch::zeros({3, 2}), mine = torch::full({1, 2}, rank, at::kFloat);
    backend._allgather_base(gathered, mine, {})->wait();
    EXPECT_TRUE(
        torch::equal(gathered, torch::arange(3).to(at::kFloat).view({3, 1}).expand({3, 2})));
    at::Tensor output = torch::zeros({2}), input = torch::arange(6).to(at::kFloat) + rank;
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    backend._reduce_scatter_base(output, input, options)->wait();
    EXPECT_TRUE(torch::equal(output, torch::tensor({2.0F * rank + 1, 2.0F * rank + 2}))) << output;
  });
}

TEST(Hierarchical, NothingIsReducedToNothing) {
  on_two_hosts_of_two([](c10d::Backend& backend, int) {
    at::Tensor output = torch::zeros({0}), input = torch::zeros({0});
    EXPECT_NO_THROW(backend._reduce_scatter_base(output, input, {})->wait());
  });
}

TEST(Hierarchical, PartsOfOtherLengthsAreRefused) {
  on_two_hosts_of_two([](c10d::Backend& backend, int) {
    at::Tensor output = torch::zeros({7}), input = torch::zeros({2});
    EXPECT_ANY_THROW(backend._allgather_base(output, input, {})->wait());
    EXPECT_ANY_THROW(backend._reduce_scatter_base(input, output, {})->wait());
  });
}

}  // namespace
}  // namespace muster
