// `if (rank == 0) evaluate(model);` of a model that is divided over ranks: an error that says what
// is collective, whether the others have left, wait or train on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/pipeline/stages.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What rank 1 does while rank 0 evaluates.
const std::vector<std::string> kMeanwhile = {"leaves", "waits", "trains"};

class EvaluatedAlone : public ::testing::TestWithParam<const char*> {
 protected:
  // What rank 0 says, of one that waits for two seconds. Only what the model's group does is
  // limited, and the ranks begin that together.
  static std::string said_by_rank_0(const std::string& meanwhile,
                                    const std::function<void(ProcessGroup&)>& make,
                                    const std::function<void(int rank)>& evaluate,
                                    const std::function<void(int rank)>& train) {
    InitOptions options{.backend = GetParam()};
    options.timeout = std::chrono::minutes(2);
    std::promise<void> evaluated;
    const auto failures = failures_of_ranks(
        2,
        [&](ProcessGroup& group) {
          sharded_mlp();  // what LibTorch does once takes its time here
          ProcessGroup limited = group.with_timeout(std::chrono::seconds(2));
          group.barrier();
          make(limited);
          group.barrier();
          train(group.rank());
          group.barrier();
          if (group.rank() == 1) {
            if (meanwhile == "leaves")
              return group.shutdown();
            if (meanwhile == "waits")
              return evaluated.get_future().wait();
            return train(1);
          }
          const std::shared_ptr<void> done(nullptr, [&](void*) { evaluated.set_value(); });
          evaluate(0);
          train(0);
        },
        options);
    return message_of(failures[0]);
  }
};
INSTANTIATE_TEST_SUITE_P(Over,
                         EvaluatedAlone,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// A fully sharded model of each of two ranks.
struct ShardedOfTwo {
  std::vector<std::unique_ptr<FullySharded>> sharded{2};
  std::vector<std::unique_ptr<LayeredMlpImpl>> models{2};

  void make(ProcessGroup& group) {
    const int rank = group.rank();
    sharded[rank] = std::make_unique<FullySharded>(group);
    models[rank] = std::make_unique<LayeredMlpImpl>(sharded_mlp(), *sharded[rank]);
  }
  void train(int rank) {
    for (int64_t step = 0; step < 3; ++step) {
      const auto batch = mlp_batch(step).of(rank, 2);
      sharded_loss(models[rank]->forward(batch.x), batch.y).backward();
    }
  }
};

TEST_P(EvaluatedAlone, AFullyShardedModelNamesItsForward) {
  for (const std::string& meanwhile : kMeanwhile) {
    // Gloo ends the process where messages of two calls have different lengths.
    if (meanwhile == "trains" && GetParam() == std::string("gloo"))
      continue;
    ShardedOfTwo two;
    const std::string said = said_by_rank_0(
        meanwhile,
        [&](ProcessGroup& group) { two.make(group); },
        [&](int rank) {
          const torch::NoGradGuard no_grad;
          two.models[rank]->forward(mlp_batch(0).x);
        },
        [&](int rank) { two.train(rank); });
    EXPECT_THAT(said,
                AllOf(HasSubstr("fully sharded: expected every rank in this forward"),
                      HasSubstr("whole_parameters()")))
        << meanwhile;
  }
}

TEST_P(EvaluatedAlone, ARankThatLeavesTheTrainingIsNotSaidToEvaluate) {
  ShardedOfTwo two;
  const auto train = [&](int rank) {
    two.train(rank);
  };
  const std::string said =
      said_by_rank_0("leaves", [&](ProcessGroup& group) { two.make(group); }, train, train);
  EXPECT_THAT(said, AllOf(Not(""), Not(HasSubstr("evaluate"))));
}

TEST_P(EvaluatedAlone, APipelineNamesEvaluate) {
  for (const std::string& meanwhile : kMeanwhile) {
    std::vector<std::unique_ptr<Pipeline>> pipelines(2);
    const auto train = [&](int rank) {
      for (int64_t step = 0; step < 3; ++step)
        pipelines[rank]->step(mlp_batch(step).x, mlp_batch(step).y);
    };
    const std::string said = said_by_rank_0(
        meanwhile,
        [&](ProcessGroup& group) {
          const int rank = group.rank();
          auto net = sharded_mlp();
          auto stages = cut_into_stages(net, cut_at(net->size(), {2}));
          std::vector<PipelineStage> own;
          own.emplace_back(stages[rank]);
          pipelines[rank] = std::make_unique<Pipeline>(
              std::move(own),
              group,
              PipelineOptions{
                  .schedule = one_f_one_b(2, 2), .loss = sharded_loss, .share_loss = true});
        },
        [&](int rank) { pipelines[rank]->evaluate(mlp_batch(0).x, mlp_batch(0).y); },
        train);
    EXPECT_THAT(said,
                AllOf(HasSubstr("pipeline: expected every rank in evaluate"),
                      HasSubstr("gather_parameters()")))
        << meanwhile;
  }
}

}  // namespace
}  // namespace muster::testing
