// What was never added to the checkpoints begins anew at a resume, beside what goes on.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
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
      lowered.step(std::numeric_limits<double>::infinity());  // never better
      ema.update();
    }
  }

  torch::nn::Linear net{3, 2}, other_net{2, 2};
  torch::optim::SGD optimizer{net->parameters(), 0.1};
  torch::optim::SGD other_optimizer{other_net->parameters(), 0.1};
  Schedule schedule{optimizer, rate::exponential(0.5)};
  Plateau lowered{other_optimizer, {.patience = 0}};
  Ema ema{*net, 0.9};
};

using AddsParts = std::function<void(Checkpoints& checkpoints, ResumedProgram& trained)>;
using Beside = std::function<void(ProcessGroup& group, ResumedProgram& trained)>;

const Beside nothing_more = [](ProcessGroup&, ResumedProgram&) {
};

void add_models(Checkpoints& checkpoints, ResumedProgram& trained) {
  checkpoints.add("model", trained.net).add("other", trained.other_net);
  checkpoints.add("optimizer", trained.optimizer).add("of_other", trained.other_optimizer);
}

void add_all_parts(Checkpoints& checkpoints, ResumedProgram& trained) {
  add_models(checkpoints, trained);
  checkpoints.add("schedule", trained.schedule).add("lowered", trained.lowered);
  checkpoints.add("ema", trained.ema);
}

// What two ranks print that resume after step 3. `goes_on` comes after the restore.
std::string said_after_resume(const AddsParts& saves,
                              const AddsParts& resumes,
                              const CheckpointsOptions& options = {},
                              const Beside& goes_on = nothing_more) {
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
    goes_on(group, trained);
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
  const Beside another = [](ProcessGroup&, ResumedProgram&) {
    ResumedProgram().run(1);
  };
  EXPECT_THAT(said_after_resume(add_all_parts, add_all_parts, {}, another),
              Not(HasSubstr("expected to be a part")));
}

// The models come from a run before; all parts are of the training that begins with them.
TEST(LeftOutParts, OnesOfASecondCheckpointsAreNot) {
  for (const bool asks_to_restore : {true, false}) {
    const test::TempFolder folder;
    const Beside begins = [&](ProcessGroup& group, ResumedProgram& trained) {
      Checkpoints training(group, {.folder = folder.path(), .resume = true});
      add_all_parts(training, trained);
      if (asks_to_restore) {
        ASSERT_FALSE(training.restore());
      }
      trained.run(1);
    };
    EXPECT_THAT(said_after_resume(add_models, add_models, {}, begins),
                Not(HasSubstr("expected to be a part")));
  }
}

}  // namespace
}  // namespace muster::testing
