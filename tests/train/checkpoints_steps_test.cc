// A training without a loader: its steps are those that are left, and each ends with save_or_stop.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>

#include "muster/checkpoint/training/checkpoints.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The steps that a training takes until `until`.
std::vector<int64_t> steps_of(ProcessGroup& group,
                              const CheckpointsOptions& options,
                              int64_t until) {
  const torch::nn::Linear net(1, 1);
  SavedState notes;
  notes.numbers["taken"] = 0;
  Checkpoints checkpoints(group, options);
  checkpoints.add("model", net).add("notes", notes);
  checkpoints.restore();
  std::vector<int64_t> taken;
  for (const int64_t step : checkpoints.steps(until)) {
    EXPECT_EQ(notes.numbers["taken"], static_cast<double>(step - 1));
    notes.numbers["taken"] = static_cast<double>(step);
    taken.push_back(step);
  }
  return taken;
}

TEST(CheckpointsSteps, GoOnAfterTheRestoredStep) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    const CheckpointsOptions options{.folder = folder.path(), .every = 2, .resume = true};
    EXPECT_THAT(steps_of(group, options, 5), ElementsAre(1, 2, 3, 4, 5));
    EXPECT_THAT(steps_of(group, options, 7), ElementsAre(5, 6, 7));
    EXPECT_THAT(steps_of(group, options, 6), IsEmpty());
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "step-2"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-5"));
  EXPECT_TRUE(std::filesystem::exists(folder / "step-6"));
}

// A second phase of a training begins where the first one ended, whenever the job was stopped.
TEST(CheckpointsSteps, OfASecondLoopFollowThoseOfTheFirst) {
  for (const int64_t dies_after : {100, 3, 6}) {
    const test::TempFolder folder;
    std::vector<int64_t> taken;
    for (int run = 0; run < 2; ++run) {
      run_ranks(1, [&](ProcessGroup& group) {
        const torch::nn::Linear net(1, 1);
        Checkpoints checkpoints(group, {.folder = folder.path(), .every = 1, .resume = true});
        checkpoints.add("model", net);
        checkpoints.restore();
        for (const int64_t until : {4, 8}) {
          for (const int64_t step : checkpoints.steps(until)) {
            if (run == 0 && step > dies_after)
              return;
            taken.push_back(step);
          }
        }
      });
    }
    EXPECT_THAT(taken, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8)) << dies_after;
  }
}

// A second loader counts from 0, unless the program adds the steps of the first.
TEST(CheckpointsSteps, ThatBeginAnewAreWarnedOfOnce) {
  const auto said = [](int64_t first_of_second) {
    const test::TempFolder folder;
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](ProcessGroup& group) {
      const torch::nn::Linear net(1, 1);
      Checkpoints checkpoints(group, {.folder = folder.path(), .every = 2});
      checkpoints.add("model", net);
      for (const int64_t before : {int64_t{0}, first_of_second, 2 * first_of_second})
        for (int64_t step = 1; step <= 6; ++step)
          checkpoints.save_or_stop(before + step);
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const char* const warning = "expected steps that grow, got step 2 after step 6";
  EXPECT_EQ(times(said(0), warning), 1U);
  EXPECT_EQ(times(said(6), "steps that grow"), 0U);
}

// What a training goes back to is no step that begins anew.
TEST(CheckpointsSteps, AfterGoingBackAreNotWarnedOf) {
  const test::TempFolder folder;
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    const torch::nn::Linear net(1, 1);
    Checkpoints checkpoints(group, {.folder = folder.path(), .every = 1});
    checkpoints.add("model", net);
    for (int64_t step = 1; step <= 3; ++step)
      checkpoints.save_or_stop(step);
    checkpoints.go_back(2);
    checkpoints.save_or_stop(2);
  });
  EXPECT_EQ(times(::testing::internal::GetCapturedStderr(), "steps that grow"), 0U);
}

TEST(CheckpointsSteps, EndWithTheStepInWhichTheJobIsToStop) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    int asked = 0;
    CheckpointsOptions options{.folder = folder.path(), .every = 100, .resume = true};
    options.should_stop = [&] {
      return ++asked == 3;
    };
    EXPECT_THAT(steps_of(group, options, 10), ElementsAre(1, 2, 3));
    EXPECT_THAT(steps_of(group, options, 5), ElementsAre(4, 5));
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "step-3"));
}

}  // namespace
}  // namespace muster::testing
