// What was never added to the checkpoints begins anew at a resume, beside what goes on.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "muster/checkpoint/training/checkpoints.h"
#include "muster/train/ema.h"
#include "muster/train/schedule.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct ResumedProgram {
  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      net(torch::ones({2, 3})).square().mean().backward();
      optimizer.step();
      schedule.step();
      lowered.step(1);
      ema.update();
    }
  }

  torch::nn::Linear net{3, 2}, other_net{2, 2};
  torch::optim::SGD optimizer{net->parameters(), 0.1};
  torch::optim::SGD other_optimizer{other_net->parameters(), 0.1};
  Schedule schedule{optimizer, rate::exponential(0.5)};
  Plateau lowered{other_optimizer};
  Ema ema{*net, 0.9};
};

using AddsParts = std::function<void(Checkpoints& checkpoints, ResumedProgram& trained)>;

void add_models(Checkpoints& checkpoints, ResumedProgram& trained) {
  checkpoints.add("model", trained.net).add("other", trained.other_net);
  checkpoints.add("optimizer", trained.optimizer).add("of_other", trained.other_optimizer);
}

void add_all_parts(Checkpoints& checkpoints, ResumedProgram& trained) {
  add_models(checkpoints, trained);
  checkpoints.add("schedule", trained.schedule).add("lowered", trained.lowered);
  checkpoints.add("ema", trained.ema);
}

// What two ranks print that resume after step 3.
std::string said_after_resume(const AddsParts& saves,
                              const AddsParts& resumes,
                              const CheckpointsOptions& options = {}) {
  const test::TempFolder folder;
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    ResumedProgram trained;
    trained.run(3);
    Checkpoints checkpoints(group, {.folder = folder.path()});
    saves(checkpoints, trained);
    checkpoints.save(3);
  });
  run_ranks(2, [&](ProcessGroup& group) {
    CheckpointsOptions resuming = options;
    resuming.folder = folder.path();
    resuming.resume = true;
    ResumedProgram trained;
    Checkpoints checkpoints(group, resuming);
    resumes(checkpoints, trained);
    ASSERT_TRUE(checkpoints.restore());
    trained.run(3);
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(LeftOutParts, OnesThatWereNeverAddedAreSaidOnce) {
  const std::string said = said_after_resume(add_models, add_models);
  for (const char* beside : {"schedule: expected to be a part of the Checkpoints that resumed its "
                             "optimizer after step 3",
                             "plateau: expected to be a part of the Checkpoints that resumed its "
                             "optimizer after step 3",
                             "ema: expected to be a part of the Checkpoints that resumed its model "
                             "after step 3"})
    EXPECT_EQ(times(said, beside), 1U) << said;
}

TEST(LeftOutParts, PartsThatGoOnAreNot) {
  EXPECT_THAT(said_after_resume(add_all_parts, add_all_parts),
              Not(HasSubstr("expected to be a part")));
}

TEST(LeftOutParts, WhatTheProgramSaysItselfIsNot) {
  EXPECT_THAT(
      said_after_resume(add_models, add_all_parts, {.new_parts = {"schedule", "lowered", "ema"}}),
      Not(HasSubstr("expected to be a part")));
  EXPECT_THAT(
      said_after_resume(add_all_parts, add_all_parts, {.fresh = {"schedule", "lowered", "ema"}}),
      Not(HasSubstr("expected to be a part")));
  EXPECT_THAT(
      said_after_resume(add_all_parts, add_models, {.leave_out = {"schedule", "lowered", "ema"}}),
      Not(HasSubstr("expected to be a part")));
}

TEST(LeftOutParts, AnotherTrainingOfTheProcessIsNot) {
  const AddsParts resumes = [](Checkpoints& checkpoints, ResumedProgram& trained) {
    add_all_parts(checkpoints, trained);
    ResumedProgram another;
    another.run(1);
  };
  EXPECT_THAT(said_after_resume(add_all_parts, resumes), Not(HasSubstr("expected to be a part")));
}

}  // namespace
}  // namespace muster::testing
