// The best checkpoint of a training, early stopping, and saves by time.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <optional>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/list.h"
#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/train/ema.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

const BestOptions kTop1{.metric = "top1", .larger_is_better = true};

std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const StepFolder& found : list_checkpoints(folder))
    steps.insert(steps.begin(), found.step);
  return steps;
}

std::vector<int64_t> best_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const ListedCheckpoint& row : list_with_state(folder))
    if (row.is_best)
      steps.push_back(row.step);
  return steps;
}

// A training whose only weight is the number of its steps, so that a checkpoint can be told.
struct Counted {
  Counted(ProcessGroup& group, CheckpointsOptions options)
      : checkpoints(group, std::move(options)) {
    checkpoints.add("model", net);
    checkpoints.restore();
  }
  void step(int64_t step) {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(static_cast<double>(step));
  }
  torch::nn::Linear net{torch::nn::LinearOptions(1, 1).bias(false)};
  Checkpoints checkpoints;
};

TEST(BestCheckpoint, IsNeverRemoved) {
  for (const bool background : {false, true}) {
    for (const bool sharded : {false, true}) {
      const test::TempFolder folder;
      run_ranks(2, [&](ProcessGroup& group) {
        FullySharded divided(group);
        torch::nn::Linear net(torch::nn::LinearOptions(4, 4).bias(false));
        torch::nn::init::ones_(net->weight);
        std::optional<FullyShardedModule<torch::nn::Linear>> model;
        Checkpoints checkpoints(
            group,
            {.folder = folder.path(), .keep_last = 2, .best = kTop1, .background = background});
        if (sharded) {
          model = divided.wrap(net);
          checkpoints.add("model", divided.pieces(*net));
        } else {
          checkpoints.add("model", net);
        }
        const double values[] = {0.5, 0.9, 0.7, 0.6, 0.9, 0.1};
        for (int64_t step = 1; step <= 6; ++step) {
          checkpoints.save(step, values[step - 1]);
          EXPECT_EQ(checkpoints.best()->step, step == 1 ? 1 : 2);
        }
        checkpoints.finish();
        EXPECT_EQ(checkpoints.best()->value, 0.9);
        EXPECT_EQ(checkpoints.best()->path, folder / "step-2");
      });
      EXPECT_THAT(steps_in(folder.path()), ElementsAre(2, 5, 6));
      EXPECT_THAT(best_in(folder.path()), ElementsAre(2));
    }
  }
}

// What a program measures inside of Ema::swap() is the averages' value.
TEST(BestCheckpoint, OfAnAverageIsLoadedAsSuch) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    Ema ema(*net, 0.5);
    Checkpoints checkpoints(group, {.folder = folder.path(), .best = kTop1});
    checkpoints.add("net", net).add("averages", ema);
    for (const double weight : {2.0, 8.0}) {
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(weight);
      }
      ema.update();
    }
    double value = 0;
    {
      const auto swapped = ema.swap();
      value = net->weight.item<double>();
    }
    ASSERT_TRUE(checkpoints.save_if_best(2, value));

    torch::nn::Linear best(torch::nn::LinearOptions(1, 1).bias(false));
    const std::string path = checkpoints.best()->path;
    EXPECT_THAT(load_weights(*best, path, {.part = "averages"}, group).loaded,
                ElementsAre("weight"));
    EXPECT_EQ(best->weight.item<double>(), 5);
    load_weights(*best, path, {}, group);
    EXPECT_EQ(best->weight.item<double>(), 8);
    EXPECT_THAT(
        test::message_of([&] { load_weights(*best, path, {.part = "ema"}, group); }),
        HasSubstr("parts.safetensors' (averages, generators), got 'ema'; name one of them"));
    EXPECT_THAT(test::message_of([&] {
                  load_weights(*best, path + "/model.safetensors", {.part = "averages"}, group);
                }),
                HasSubstr("expected a checkpoint's folder, which has parts, got"));
    EXPECT_THAT(test::message_of([&] {
                  load_weights(*torch::nn::Linear(1, 1), path, {.part = "averages"}, group);
                }),
                HasSubstr("step-2:averages', got none for 1 tensor, 'bias' first"));
    EXPECT_EQ(best->weight.item<double>(), 8);
  });
}

TEST(BestCheckpoint, AllRanksTakeRankZerosValueAndNoneThatIsNotFinite) {
  const test::TempFolder folder;
  run_ranks(3, [&](ProcessGroup& group) {
    Counted training(group, {.folder = folder.path(), .best = BestOptions{.metric = "loss"}});
    Checkpoints& checkpoints = training.checkpoints;
    EXPECT_FALSE(checkpoints.save_if_best(1, kNotANumber));
    EXPECT_FALSE(checkpoints.save_if_best(2, -INFINITY));
    EXPECT_FALSE(checkpoints.best().has_value());
    const double mine = group.rank() == 0 ? 2.0 : -5.0 * group.rank();
    EXPECT_TRUE(checkpoints.save_if_best(3, mine));
    EXPECT_EQ(checkpoints.best()->value, 2);
    EXPECT_FALSE(checkpoints.save_if_best(4, group.rank() == 0 ? 2.5 : 0.0));
    checkpoints.save(5, kNotANumber);
    EXPECT_EQ(checkpoints.best()->step, 3);
  });
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(3, 5));
  EXPECT_THAT(best_in(folder.path()), ElementsAre(3));
  EXPECT_FALSE(list_with_state(folder.path()).front().metric->value.has_value());
}

TEST(BestCheckpoint, SavesOfTheSameStepSayItsValueToo) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    Counted training(group, {.folder = folder.path(), .every = 2, .keep_last = 1, .best = kTop1});
    for (int64_t step = 1; step <= 6; ++step) {
      training.step(step);
      if (step == 4) {
        EXPECT_TRUE(training.checkpoints.save_if_best(step, 0.75));
      }
      training.checkpoints.save_or_stop(step);
    }
  });
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(4, 6));
  const auto listed = list_with_state(folder.path());
  EXPECT_EQ(listed[1].metric->value, 0.75);
  EXPECT_FALSE(listed[0].metric.has_value());
  EXPECT_THAT(best_in(folder.path()), ElementsAre(4));
}

// Whatever its last save was, a training that goes on has the same best and the same patience.
TEST(BestCheckpoint, AResumedTrainingHasTheSameBestAndStopsAtTheSameStep) {
  const double values[] = {0.5, 0.7, 0.69, 0.705, 0.71, 0.72, kNotANumber, 0.6, 0.5, 0.4, 0.3};
  struct End {
    int64_t stops_at = 0, best = 0;
    std::vector<int64_t> steps;
  };
  const auto train = [&](const std::string& folder, int64_t dies_after) {
    End end;
    for (int run = 0; run < 2; ++run) {
      run_ranks(2, [&](ProcessGroup& group) {
        BestOptions best = kTop1;
        best.patience = 3;
        best.min_delta = 0.02;
        Counted training(
            group, {.folder = folder, .every = 2, .keep_last = 2, .best = best, .resume = true});
        Checkpoints& checkpoints = training.checkpoints;
        for (int64_t step = checkpoints.step() + 1; step <= 11 && !checkpoints.stops_early();
             ++step) {
          if (run == 0 && step > dies_after)
            return;
          training.step(step);
          checkpoints.save_if_best(step, values[step - 1]);
          checkpoints.save_or_stop(step);
          if (group.rank() == 0)
            end.stops_at = step;
        }
        if (group.rank() == 0)
          end.best = checkpoints.best()->step;
      });
    }
    end.steps = steps_in(folder);
    return end;
  };
  const test::TempFolder whole;
  const End expected = train(whole.path(), 11);
  EXPECT_EQ(expected.stops_at, 5)
      << "0.71 is better than 0.7 by less than min_delta, for the third time";
  EXPECT_EQ(expected.best, 5);
  for (int64_t dies_after = 1; dies_after <= 5; ++dies_after) {
    const test::TempFolder folder;
    const End end = train(folder.path(), dies_after);
    EXPECT_EQ(end.stops_at, expected.stops_at) << dies_after;
    EXPECT_EQ(end.best, expected.best) << dies_after;
    EXPECT_EQ(end.steps, expected.steps) << dies_after;
  }
}

TEST(BestCheckpoint, ATrainingWithAnotherMetricBeginsAnewOnlyWhenAsked) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    {
      Counted(group, {.folder = folder.path(), .best = kTop1}).checkpoints.save(1, 0.9);
    }
    const BestOptions loss{.metric = "loss"};
    const auto refusal = [&](const CheckpointsOptions& options) {
      try {
        const Counted training(group, options);
        return std::string("resumed");
      } catch (const Error& error) {
        return std::string(error.what());
      }
    };
    EXPECT_THAT(refusal({.folder = folder.path(), .best = loss, .resume = true}),
                HasSubstr("'best' to have been saved with the number 'smallest loss'"));
    EXPECT_THAT(refusal({.folder = folder.path(), .resume = true}), HasSubstr("leave_out"));
    Counted fresh(group,
                  {.folder = folder.path(), .best = loss, .resume = true, .fresh = {"best"}});
    EXPECT_FALSE(fresh.checkpoints.best().has_value());
    fresh.checkpoints.save(2, 3.5);
    EXPECT_EQ(fresh.checkpoints.best()->step, 2);
  });
  EXPECT_THAT(best_in(folder.path()), ElementsAre(2)) << "by the metric of the newest";
}

// What the folder says is the best stays too: it is the user's.
TEST(BestCheckpoint, ABestThatBeginsAnewIsKept) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    {
      Counted(group, {.folder = folder.path(), .best = kTop1}).checkpoints.save(1, 0.9);
    }
    Counted fresh(group,
                  {.folder = folder.path(),
                   .keep_last = 1,
                   .best = kTop1,
                   .resume = true,
                   .fresh = {"best"}});
    for (int64_t step = 2; step <= 4; ++step)
      fresh.checkpoints.save(step, 1.0 / static_cast<double>(step));
    EXPECT_EQ(fresh.checkpoints.best()->path, folder / "step-2");
  });
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(1, 2, 4));
}

// Files of this process may not grow while it lives.
class NoRoom {
 public:
  NoRoom() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~NoRoom() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

// The failure is heard in finish(), or in the next save, which then saves nothing.
TEST(BestCheckpoint, OneWhoseWritingFailsLaterIsNot) {
  for (const bool hears_in_save : {false, true}) {
    for (const bool sharded : {false, true}) {
      const test::TempFolder folder;
      std::optional<NoRoom> no_room;
      run_ranks(2, [&](ProcessGroup& group) {
        FullySharded divided(group);
        torch::nn::Linear net(torch::nn::LinearOptions(4, 4).bias(false));
        torch::nn::init::ones_(net->weight);
        std::optional<FullyShardedModule<torch::nn::Linear>> model;
        Checkpoints checkpoints(group,
                                {.folder = folder.path(), .best = kTop1, .background = true});
        if (sharded) {
          model = divided.wrap(net);
          checkpoints.add("model", divided.pieces(*net));
        } else {
          checkpoints.add("model", net);
        }
        checkpoints.save(1, 0.5);
        checkpoints.finish();
        group.barrier();
        if (group.rank() == 0)
          no_room.emplace();
        group.barrier();
        EXPECT_TRUE(checkpoints.save_if_best(2, 0.9));
        if (hears_in_save) {
          EXPECT_THROW(checkpoints.save_if_best(3, 0.95), Error);
        } else {
          EXPECT_THROW(checkpoints.finish(), Error);
        }
        EXPECT_EQ(checkpoints.best()->step, 1);
        group.barrier();
        if (group.rank() == 0)
          no_room.reset();
        group.barrier();
        EXPECT_TRUE(checkpoints.save_if_best(4, 0.6));
        checkpoints.finish();
        EXPECT_EQ(checkpoints.best()->path, folder / "step-4");
      });
      EXPECT_THAT(steps_in(folder.path()), ElementsAre(1, 4));
      EXPECT_THAT(best_in(folder.path()), ElementsAre(4));
    }
  }
}

TEST(BestCheckpoint, GoingBackForgetsWhatWasAbandoned) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    Counted training(group, {.folder = folder.path(), .keep_last = 2, .best = kTop1});
    Checkpoints& checkpoints = training.checkpoints;
    checkpoints.save(10, 0.5);
    checkpoints.save(20, 0.9);
    EXPECT_EQ(checkpoints.go_back(10), 10);
    EXPECT_EQ(checkpoints.best()->step, 10);
    checkpoints.save(21, 0.6);
    EXPECT_EQ(checkpoints.best()->step, 21);
    checkpoints.save(22, 0.1);
    checkpoints.save(23, 0.1);
  });
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(21, 22, 23));
  EXPECT_THAT(best_in(folder.path()), ElementsAre(21));
}

TEST(BestCheckpoint, ADamagedOneIsNotTheBest) {
  const test::TempFolder folder;
  run_ranks(1, [&](ProcessGroup& group) {
    Counted training(group, {.folder = folder.path(), .best = kTop1});
    training.checkpoints.save(1, 0.5);
    training.checkpoints.save(2, 0.9);
  });
  EXPECT_THAT(best_in(folder.path()), ElementsAre(2));
  std::ofstream(folder / "step-2/model.safetensors", std::ios::app) << "x";
  EXPECT_THAT(best_in(folder.path()), ElementsAre(1));
}

TEST(BestCheckpoint, OptionsWithoutSenseAreRefused) {
  const test::TempFolder folder;
  run_ranks(1, [&](ProcessGroup& group) {
    const auto refusal = [&](BestOptions best) {
      try {
        const Checkpoints checkpoints(group, {.folder = folder.path(), .best = std::move(best)});
        return std::string("taken");
      } catch (const Error& error) {
        return std::string(error.what());
      }
    };
    EXPECT_THAT(refusal({.patience = -1}), HasSubstr("'metric', -1 and 0"));
    for (const double delta : {kNotANumber, std::numeric_limits<double>::infinity()})
      EXPECT_THAT(refusal({.min_delta = delta}), HasSubstr("min_delta of 0 or more"));
    EXPECT_THAT(refusal({.metric = ""}), HasSubstr("a printable name"));
    Checkpoints none(group, {.folder = folder.path()});
    EXPECT_FALSE(none.stops_early());
    EXPECT_FALSE(none.best().has_value());
    try {
      none.save_if_best(1, 2.0);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    }
    EXPECT_THROW(
        Checkpoints(group, {.folder = folder.path(), .every_time = std::chrono::seconds(-1)}),
        Error);
  });
}

// Every step is later than 1 ms after some other one; none is a day after.
TEST(SavesByTime, RankZerosClockDecidesForAll) {
  const test::TempFolder soon, late;
  run_ranks(3, [&](ProcessGroup& group) {
    Counted often(group, {.folder = soon.path(), .every_time = std::chrono::milliseconds(1)});
    std::vector<int64_t> saved;
    for (int64_t step = 1; saved.size() < 3; ++step)
      if (!often.checkpoints.save_when_due(step).empty())
        saved.push_back(step);
    EXPECT_EQ(saved.back(), steps_in(soon.path()).back());
    Counted seldom(group,
                   {.folder = late.path(), .every = 5, .every_time = std::chrono::hours(24)});
    for (int64_t step = 1; step <= 11; ++step)
      seldom.checkpoints.save_or_stop(step);
  });
  EXPECT_EQ(steps_in(soon.path()).size(), 3U);
  EXPECT_THAT(steps_in(late.path()), ElementsAre(5, 10));
}

}  // namespace
}  // namespace muster::testing
