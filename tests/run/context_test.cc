#include "muster/run/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/uneven_inputs.h"
#include "muster/data/own_loaders.h"
#include "muster/data/random_split.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/run/sampler_checks.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Context context_of(ProcessGroup& group) {
  RankEnv env;
  env.rank = group.rank();
  env.world_size = group.size();
  return Context({.env = env, .assignment = {}, .device = c10::kCPU, .group = group});
}

TEST(Context, SeedsDifferByRankAndStayTheSame) {
  run_ranks(3, [](ProcessGroup& group) {
    const Context ctx = context_of(group);
    EXPECT_EQ(ctx.seed(40), 40U + static_cast<uint64_t>(group.rank()));
  });
}

TEST(Context, SamplersOfAllRanksShareTheDataOut) {
  run_ranks(3, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    auto sampler = ctx.sampler(30, {.seed = 5});
    auto all = torch::empty({30}, torch::kLong);
    const auto indices = sampler.indices();
    group.all_gather(all, torch::tensor(indices));
    const auto* begin = all.const_data_ptr<int64_t>();
    EXPECT_EQ(std::set<int64_t>(begin, begin + 30).size(), 30U);
  });
}

TEST(Context, SamplersThatDifferAreRefusedOnEveryRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    ctx.sampler(30, {.seed = group.rank() == 2 ? 6 : 5}).indices();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), ::testing::HasSubstr("seed"));
}

// A seed that differs by rank would train some samples twice, and others that are to be evaluated.
TEST(Context, SplitsThatDifferAreRefusedOnEveryRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    const TensorDataset data(torch::arange(30), torch::arange(30));
    const auto parts = random_split(data, {0.8, 0.2}, {.seed = group.rank() == 2 ? 6 : 5});
    auto loader = ctx.loader(parts[0], {.batch_size = 2});
    for (const auto& batch : loader)
      (void)batch.labels;
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("shuffled(24) of samples"));
}

struct Sevens : Stream<int64_t> {
  struct Reader : StreamReader<int64_t> {
    explicit Reader(const StreamPart& part) : at(part.part), step(part.parts) {}
    std::optional<int64_t> next() override {
      if (at >= 24)
        return std::nullopt;
      return std::exchange(at, at + step);
    }
    int64_t at, step;
  };
  std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(part);
  }
};

TEST(Context, LoadersShareADatasetAndAreKeptInAVector) {
  run_ranks(2, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    const auto data = std::make_shared<const TensorDataset>(torch::arange(12), torch::arange(12));
    std::vector<DataLoader<TensorDataset>> loaders;
    for (int64_t batch = 1; batch <= 3; ++batch)
      loaders.push_back(ctx.loader(data, {.batch_size = batch}));
    loaders.push_back(ctx.loader(data, ctx.sampler(in_order(12)), {.batch_size = 2}));
    for (auto& loader : loaders) {
      EXPECT_EQ(&loader.dataset(), data.get());
      EXPECT_EQ(loader.num_samples(), 6);
    }
    const DataLoaderOptions options{.batch_size = 8};
    auto streamed = ctx.loader(std::make_shared<const Sevens>(), options);
    auto in_memory = ctx.loader(data, options);
    const torch::NoGradGuard no_grad;
    for (const auto& batch : streamed) {
      EXPECT_EQ(batch.size(0), 8);
      break;
    }
    EXPECT_EQ(in_memory.num_batches(), 1);
  });
}

TEST(Context, LoadersOfStreamsShareTheDataOut) {
  run_ranks(3, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    auto loader = ctx.loader(Sevens(), {.batch_size = 8});
    const torch::NoGradGuard no_grad;
    auto all = torch::empty({24}, torch::kLong);
    for (const auto& batch : loader)
      group.all_gather(all, batch);
    EXPECT_TRUE(torch::equal(std::get<0>(all.sort()), torch::arange(24)));
  });
}

void train_on(auto& loader) {
  for (const auto& batch : loader)
    (void)static_cast<double>(batch.weight);
}

TensorDataset twelve() {
  return {torch::arange(12), torch::arange(12)};
}

// Rank 0 has 4 samples of 7, rank 1 has 3.
TEST(Context, UnequalNumbersOfBatchesAreTrainedOnInsideOfJoin) {
  run_ranks(2, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    auto loader =
        ctx.loader(TensorDataset(torch::ones({7, 1}), torch::zeros({7})), {}, {.pad = false});
    DistributedDataParallel model(torch::nn::Linear(1, 1), group);
    const auto train = [&] {
      for (const auto& batch : loader)
        (model(batch.features).sum() * batch.weight).backward();
    };
    try {
      train();
      ADD_FAILURE() << "trained on unequal numbers";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(),
                  HasSubstr("as many batches on every rank, got 4 on some and 3 on others"));
    }
    EXPECT_EQ(model.join(train).shadowed, group.rank());
  });
}

TEST(OwnLoaders, OverAllRanksAreComparedInTraining) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group));
    DistributedSampler sampler(12, {.num_replicas = 2, .rank = group.rank(), .seed = group.rank()});
    DataLoader loader(twelve(), sampler, {.batch_size = 2});
    train_on(loader);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("the same seed on every rank, got 0 on rank 0 and 1 on rank 1"));
}

TEST(OwnLoaders, OfStreamsAreComparedInTraining) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group));
    StreamLoader loader(
        Sevens(), {.batch_size = 2, .workers = 1 + group.rank(), .rank = group.rank(), .ranks = 2});
    train_on(loader);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("got stream(1 part a rank) on rank 0 and stream(2 parts a rank)"));
}

// A stream whose part 0 has a batch more than the others.
struct Uneven : Sevens {
  std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(StreamPart{.part = part.part + 1, .parts = part.parts});
  }
};

std::string said_of_ends(int64_t ranks, const std::function<void(ProcessGroup&)>& train) {
  ::testing::internal::CaptureStderr();
  run_ranks(ranks, [&](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group), check_of_stream_ends(group));
    train(group);
  });
  return ::testing::internal::GetCapturedStderr();
}

void train_together(auto&& batches, ProcessGroup& group) {
  for (const auto& batch : batches) {
    (void)static_cast<double>(batch.weight);
    auto gradient = torch::ones({1});
    group.all_reduce(gradient);
  }
}

// Over two epochs, which is what would be told too late, at the end of the program.
TEST(OwnLoaders, LoopsOfUnequalNumbersOfStepsAreSaid) {
  const auto said = [](const std::function<DataLoaderOptions(int rank)>& options,
                       int64_t left_after) {
    return said_of_ends(2, [&](ProcessGroup& group) {
      const TensorDataset data(torch::zeros({24, 1}), torch::zeros({24}));
      DistributedSampler sampler(24, {.num_replicas = 2, .rank = group.rank()});
      DataLoader loader(data, sampler, options(group.rank()));
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        loader.set_epoch(epoch);
        for (const auto& batch : loader) {
          (void)static_cast<double>(batch.weight);
          if (group.rank() == 1 && loader.position().step == left_after)
            break;
        }
      }
    });
  };
  const auto alike = [](int) {
    return DataLoaderOptions{.batch_size = 2};
  };
  EXPECT_EQ(said(alike, -1), "");
  EXPECT_THAT(said(alike, 2), HasSubstr("data loader: expected as many steps on every rank, got "));
  EXPECT_THAT(said([](int rank) { return DataLoaderOptions{.batch_size = 2 + 2 * rank}; }, -1),
              HasSubstr("give all ranks one batch_size and accumulate"));
  EXPECT_THAT(
      said([](int rank) { return DataLoaderOptions{.batch_size = 2, .accumulate = 1 + rank}; }, -1),
      HasSubstr("in epoch 0"));
}

// The lesser number's rank went on, and its gradients met those of the other's last steps.
TEST(OwnLoaders, LoopsToOtherStepsAreSaidBeforeTheFirstStep) {
  const auto said = [](bool is_stream, int64_t more_on_rank1) {
    return said_of_ends(2, [&](ProcessGroup& group) {
      const int64_t until = 3 + group.rank() * more_on_rank1;
      const auto train = [&](auto&& loader) {
        auto steps = loader.steps(until);
        train_on(steps);
        train_on(steps);  // over as it begins
        const torch::NoGradGuard no_grad;
        auto evaluated = loader.steps(until + 1 + group.rank());
        train_on(evaluated);
      };
      if (is_stream)
        return train(StreamLoader(Sevens(), {.batch_size = 1, .rank = group.rank(), .ranks = 2}));
      DistributedSampler sampler(24, {.num_replicas = 2, .rank = group.rank()});
      const TensorDataset data(torch::zeros({24, 1}), torch::zeros({24}));
      train(DataLoader(data, sampler, {.batch_size = 2}));
    });
  };
  for (const bool is_stream : {false, true}) {
    EXPECT_EQ(said(is_stream, 0), "");
    EXPECT_THAT(said(is_stream, 2),
                AllOf(HasSubstr("loader: expected a loop to the same step on every rank"),
                      HasSubstr("steps(3)"),
                      HasSubstr("steps(5)")));
  }
}

// The store of a long job does not grow with its epochs.
TEST(OwnLoaders, EndsThatAllRanksHaveComparedLeaveNothingInTheStore) {
  run_ranks(2, [](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group), check_of_stream_ends(group));
    const auto loop = [&](int64_t epoch, bool of_steps) {
      const StreamEnd end{
          .stream = 1, .places = 1, .epoch = epoch, .batches = 5, .ranks = 2, .of_steps = of_steps};
      OwnLoaders::check_end(end);
    };
    loop(0, /*of_steps=*/false);
    loop(1, /*of_steps=*/false);
    loop(0, /*of_steps=*/true);
    group.barrier();
    for (const char* end : {"0", "1", "steps"})
      EXPECT_FALSE(group.store()->check({cat("stream_end/1/1/", end)})) << end;
  });
}

// A rank that reads data of its own numbers the loaders of all ranks as the others do.
TEST(OwnLoaders, ALoaderOfOneRankAloneIsNotCounted) {
  EXPECT_EQ(said_of_ends(2,
                         [](ProcessGroup& group) {
                           const auto train = [&](int64_t batch_size, int ranks) {
                             const TensorDataset data(torch::zeros({24, 1}), torch::zeros({24}));
                             const int rank = ranks == 1 ? 0 : group.rank();
                             DistributedSampler sampler(24, {.num_replicas = ranks, .rank = rank});
                             DataLoader loader(data, sampler, {.batch_size = batch_size});
                             for (const auto& batch : loader)
                               (void)static_cast<double>(batch.weight);
                           };
                           if (group.rank() == 1)
                             train(2, 1);
                           train(2, 2);
                           train(4, 2);
                         }),
            "");
}

// Of 23 numbers rank 0 reads 12 and rank 1 reads 11.
TEST(OwnLoaders, StreamsOfUnequalNumbersOfBatchesAreSaid) {
  const auto loader_of = [](ProcessGroup& group, int64_t batch) {
    return StreamLoader(Uneven(), {.batch_size = batch, .rank = group.rank(), .ranks = 2});
  };
  const std::string said = said_of_ends(2, [&](ProcessGroup& group) {
    auto loader = loader_of(group, 1);
    for (int epoch = 0; epoch < 3; ++epoch)
      train_together(loader, group);
    if (group.rank() == 1)  // whom rank 0 still waits for
      train_together(loader.steps(loader.position().step + 3), group);
  });
  EXPECT_THAT(said, HasSubstr("expected as many batches on every rank, got 12 here and 11 on "));
  EXPECT_THAT(said, HasSubstr("on another rank in epoch 0; "));
  EXPECT_EQ(said.find("stream loader:"), said.rfind("stream loader:")) << "once";
  const std::string alike = said_of_ends(2, [&](ProcessGroup& group) {
    auto loader = loader_of(group, 4);
    train_together(loader, group);
    train_together(loader, group);
    auto steps = loader_of(group, 1);
    train_together(steps.steps(30), group);
    auto joined = loader_of(group, 1);
    const UnevenInputs allowed;
    train_on(joined);
  });
  EXPECT_EQ(alike, "");
}

// Ranks that resume read the rest of the epoch alone, which is less than the first time.
TEST(OwnLoaders, StreamsThatAreRestoredEndAnew) {
  const std::string said = said_of_ends(2, [&](ProcessGroup& group) {
    StreamLoader loader(Sevens(), {.batch_size = 1, .rank = group.rank(), .ranks = 2});
    train_together(loader.steps(5), group);
    const StreamPosition middle = loader.position();
    train_together(loader, group);
    loader.restore(middle);
    train_together(loader, group);
    loader.set_epoch(0);
    train_together(loader, group);
  });
  EXPECT_EQ(said, "");
}

// Rank 1 leaves the first epoch before its end, which brings no other stream's ends together with
// this one's.
TEST(OwnLoaders, StreamsThatOneRankLeavesKeepTheirNumber) {
  const std::string said = said_of_ends(2, [&](ProcessGroup& group) {
    const auto loader_of = [&](int64_t batch) {
      return StreamLoader(Sevens(), {.batch_size = batch, .rank = group.rank(), .ranks = 2});
    };
    auto first = loader_of(1);
    for (const auto& batch : first) {
      (void)static_cast<double>(batch.weight);
      if (group.rank() == 1)
        break;
    }
    first.set_epoch(1);
    train_together(first, group);
    auto second = loader_of(4);
    second.set_epoch(1);
    train_together(second, group);
  });
  EXPECT_EQ(said, "");
}

TEST(OwnLoaders, StreamsThatBeginWithoutGradientsAreLeftAlone) {
  const std::string said = said_of_ends(2, [&](ProcessGroup& group) {
    for (const int64_t batch : {1, 4}) {
      StreamLoader loader(Sevens(), {.batch_size = batch, .rank = group.rank(), .ranks = 2});
      auto at = [&] {
        const torch::NoGradGuard no_grad;
        return loader.begin();
      }();
      while (at != loader.end())
        ++at;
    }
  });
  EXPECT_EQ(said, "");
}

TEST(OwnLoaders, ThatGiveEveryRankEverythingAreSaid) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group));
    DataLoader loader(twelve(), {.batch_size = 2}),
        on_purpose(twelve(), {.batch_size = 3, .undivided = true});
    StreamLoader stream(Sevens(), {.batch_size = 2});
    train_on(on_purpose);
    train_on(loader);
    train_on(stream);
    train_on(loader);
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string what = "each of the 2 ranks trains on all samples of in_order(12)";
  EXPECT_THAT(said, HasSubstr(what));
  EXPECT_EQ(said.find("each of the 2 ranks"), said.rfind("each of the 2 ranks")) << "once";
}

TEST(OwnLoaders, AStreamThatGivesEveryRankEverythingIsSaid) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group));
    StreamLoader stream(Sevens(), {.batch_size = 2});
    train_on(stream);
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("each of the 2 ranks trains on"));
}

TEST(OwnLoaders, ThatEvaluateAreLeftAlone) {
  run_ranks(2, [](ProcessGroup& group) {
    const OwnLoaders rules(check_of_own_loaders(group));
    const torch::NoGradGuard no_grad;
    if (group.rank() == 1)
      return;
    DistributedSampler sampler(12, {.num_replicas = 2, .rank = 0});
    DataLoader loader(twelve(), sampler, {.batch_size = 2});
    train_on(loader);
  });
}

// Ranks 0 and 1 differ along tp: they see the same samples.
TEST(Context, SamplesAreDealtOverOneAxisOfAMesh) {
  run_ranks(4, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    Mesh mesh = ctx.mesh({{"dp", 2}, {"tp", 2}});
    auto sampler = ctx.sampler(shuffled(30), mesh.group("dp"), {.seed = 5});
    const auto indices = sampler.indices();
    EXPECT_EQ(indices.size(), 15U);
    auto all = torch::empty({4, 15}, torch::kLong);
    group.all_gather(all, torch::tensor(indices));
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    EXPECT_TRUE(torch::equal(all[2], all[3]));
    const auto two = torch::cat({all[0], all[2]}).contiguous();
    const auto* begin = two.const_data_ptr<int64_t>();
    EXPECT_EQ(std::set<int64_t>(begin, begin + 30).size(), 30U);
    EXPECT_EQ(ctx.sampler(shuffled(30), group).indices(), ctx.sampler(shuffled(30)).indices());
    mesh.shutdown();
  });
}

TEST(Context, SamplersThatDifferAlongAnotherAxisAreRefusedOnEveryRank) {
  const auto failures = failures_of_ranks(4, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    Mesh mesh = ctx.mesh({{"dp", 2}, {"tp", 2}});
    ctx.sampler(shuffled(30), mesh.group("dp"), {.seed = mesh.rank("tp") == 1 ? 6 : 5}).indices();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("the same seed on every rank, got 5 on rank 0 and 6 on rank 1"));
}

TEST(Context, AGlobalBatchIsNotDealtOverOneAxis) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    RankEnv env;
    env.rank = group.rank();
    env.world_size = group.size();
    Context ctx({.env = env,
                 .assignment = {},
                 .device = c10::kCPU,
                 .group = group,
                 .batch_shares = {5, 3}});
    Mesh mesh = ctx.mesh({{"dp", 1}, {"tp", 2}});
    ctx.sampler(shuffled(30), mesh.group("dp"));
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("RunOptions::global_batch) where 1 of 2"));
}

TEST(Context, AxesOfOneRankOrderNothing) {
  run_ranks(2, [](ProcessGroup& group) {
    RankEnv env;
    env.rank = group.rank();
    env.world_size = group.size();
    Context ctx({.env = env,
                 .assignment = {},
                 .device = c10::kCPU,
                 .group = group,
                 .mesh = {.axes = {{"dp", 1}, {"tp", 2}}}});
    Mesh mesh = ctx.mesh({{"pp", 1}, {"tp", 2}});
    EXPECT_EQ(mesh.size("tp"), 2);
    EXPECT_THROW(ctx.mesh({{"dp", 2}, {"tp", 1}}), Error);
    mesh.shutdown();
  });
}

TEST(Context, OrdersAreToldInWordsOnEveryRank) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    Context ctx = context_of(group);
    ctx.sampler(group.rank() == 0 ? shuffled(30) : pseudo_shuffled(30)).indices();
  });
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("\n  rank 0: shuffled(30) num_replicas=2"),
                      HasSubstr("\n  rank 1: pseudo_shuffled(30) num_replicas=2")));
  }
}

TEST(Context, CostsThatDifferAreRefusedOnEveryRank) {
  const auto start = [](ProcessGroup& group, double last_cost, int64_t global_batch) {
    Context ctx = context_of(group);
    const auto sampler =
        ctx.cost_balanced(shuffled(4), {1, 2, 3, last_cost}, {.global_batch = global_batch});
    sampler->start();
    sampler->set_epoch(1);
    sampler->start();
  };
  run_ranks(2, [&](ProcessGroup& group) { start(group, 4, 2); });
  for (const bool by_cost : {true, false}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      start(group, by_cost ? 4 + group.rank() : 4, by_cost ? 2 : 2 + group.rank());
    });
    for (const auto& failure : failures) {
      EXPECT_THAT(message_of(failure),
                  AllOf(HasSubstr("expected the same order on every rank"),
                        HasSubstr("\n  rank 0: cost_balanced(shuffled(4), costs 4 numbers "),
                        HasSubstr(by_cost ? "global batch 2) num_replicas=2" : "global batch 3)")));
    }
  }
}

}  // namespace
}  // namespace muster::testing
