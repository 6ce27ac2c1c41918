// Resuming with other parts than the checkpoint has, or with parts that begin anew.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/data/loader.h"
#include "muster/train/ema.h"
#include "muster/train/precision.h"
#include "muster/train/schedule.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A program: its model, and the parts that most have.
struct Program {
  explicit Program(double lr = 0.1, double decay = 0.9)
      : optimizer(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9)),
        schedule(optimizer, rate::exponential(0.5)),
        ema(*net, decay),
        loader(
            TensorDataset(torch::arange(60).reshape({20, 3}).to(torch::kFloat), torch::zeros(20)),
            {.batch_size = 2}) {}

  void run(int64_t until) {
    for (const auto& batch : loader.steps(until)) {
      optimizer.zero_grad();
      net(batch.features / 60).square().mean().backward();
      optimizer.step();
      schedule.step();
      ema.update();
    }
  }

  torch::nn::Linear net{3, 2};
  torch::optim::SGD optimizer;
  Schedule schedule;
  Ema ema;
  DataLoader<TensorDataset> loader;
};

void add_all(Checkpoints& checkpoints, Program& program) {
  checkpoints.add("model", program.net)
      .add("optimizer", program.optimizer)
      .add("schedule", program.schedule);
  checkpoints.add("ema", program.ema).add("data", program.loader);
}

// Four steps, saved in `folder`.
void save_program(ProcessGroup& group, const std::string& folder, const std::string& launch = "") {
  Program program;
  program.run(4);
  Checkpoints checkpoints(group, {.folder = folder, .launch = launch});
  add_all(checkpoints, program);
  checkpoints.save(4);
}

TEST(CheckpointParts, AProgramCanDoWithoutAPart) {
  run_ranks(2, [](ProcessGroup& group) {
    const test::TempFolder own;
    std::string folder = own.path();
    group.broadcast_bytes(folder, 0);
    save_program(group, folder);
    Program program;
    const auto add_some = [&](Checkpoints& checkpoints) {
      checkpoints.add("model", program.net)
          .add("optimizer", program.optimizer)
          .add("data", program.loader);
    };
    Checkpoints refused(group, {.folder = folder, .resume = true});
    add_some(refused);
    EXPECT_THAT(message_of_error([&] { refused.restore(); }), HasSubstr("or name it in leave_out"));
    EXPECT_EQ(program.loader.position().step, 0) << "nothing was loaded";
    Checkpoints resumed(group,
                        {.folder = folder, .resume = true, .leave_out = {"ema", "schedule"}});
    add_some(resumed);
    EXPECT_TRUE(resumed.restore());
    EXPECT_EQ(program.loader.position().step, 4);
    resumed.save(5);
    Checkpoints wrong(group, {.folder = folder, .resume = true, .leave_out = {"data"}});
    add_some(wrong);
    EXPECT_THAT(message_of_error([&] { wrong.restore(); }),
                HasSubstr("expected leave_out to name parts that are not added, got 'data'"));
  });
}

TEST(CheckpointParts, FreshOnesKeepTheStateThatTheyHave) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    save_program(group, folder.path(), "first");
    Program program(0.1, 0.5);
    const auto average = program.ema.averages()[0].second.clone();
    const CheckpointsOptions options{.folder = folder.path(),
                                     .resume = true,
                                     .fresh = {"schedule", "ema", "data"},
                                     .launch = "second"};
    Checkpoints resumed(group, options);
    add_all(resumed, program);
    EXPECT_TRUE(resumed.restore());
    EXPECT_EQ(resumed.step(), 4);
    EXPECT_EQ(program.schedule.steps(), 0);
    EXPECT_DOUBLE_EQ(program.schedule.lr(), 0.1) << "the schedule's, not the checkpoint's";
    EXPECT_EQ(program.loader.position().step, 0);
    EXPECT_TRUE(program.ema.averages()[0].second.equal(average));
    EXPECT_FALSE(program.net->weight.equal(average)) << "the model is the checkpoint's";
    program.run(3);
    resumed.save(7);
    EXPECT_EQ(resumed.go_back(1), 4);
    EXPECT_EQ(program.schedule.steps(), 3)
        << "what is older than the fresh parts does not have them";

    // Ranks that are started again go on with what this launch has saved.
    Program again;
    CheckpointsOptions restarted = options;
    restarted.attempt = 1;
    Checkpoints after(group, restarted);
    add_all(after, again);
    EXPECT_TRUE(after.restore());
    EXPECT_EQ(after.step(), 7);
    EXPECT_EQ(again.schedule.steps(), 3);
    EXPECT_EQ(again.loader.position().step, 3);
  });
}

TEST(CheckpointParts, OnlyPartsCanBeFresh) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    Program program;
    Checkpoints checkpoints(group, {.folder = folder.path(), .fresh = {"optimizer"}});
    add_all(checkpoints, program);
    EXPECT_THAT(
        message_of_error([&] { checkpoints.restore(); }),
        HasSubstr(
            "expected fresh to name parts that are added, not models or optimizers, got 'opt"));
  });
}

// What rank 0 says while a program with another learning rate resumes.
std::string said_at_resume(ProcessGroup& group,
                           const std::string& folder,
                           Program& program,
                           bool with_schedule,
                           bool new_learning_rates) {
  CheckpointsOptions options{
      .folder = folder, .resume = true, .new_learning_rates = new_learning_rates};
  if (!with_schedule)
    options.leave_out = {"schedule"};
  Checkpoints checkpoints(group, options);
  checkpoints.add("model", program.net).add("optimizer", program.optimizer);
  if (with_schedule)
    checkpoints.add("schedule", program.schedule);
  checkpoints.add("ema", program.ema).add("data", program.loader);
  ::testing::internal::CaptureStderr();
  checkpoints.restore();
  return ::testing::internal::GetCapturedStderr();
}

TEST(CheckpointParts, ANewLearningRateIsTakenWhenAskedForAndSaidWhenNot) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    save_program(group, folder.path());  // 0.1 halved four times
    Program old(0.4);
    EXPECT_THAT(
        said_at_resume(group, folder.path(), old, true, false),
        HasSubstr(
            "resume: 'schedule' goes on with the checkpoint's learning rate, 0.1; the program "
            "gave 0.4 (.new_learning_rates takes that)"));
    EXPECT_DOUBLE_EQ(old.schedule.lr(), 0.1 / 16);
    Program fresh(0.4);
    EXPECT_THAT(said_at_resume(group, folder.path(), fresh, true, true),
                Not(HasSubstr("learning rate")));
    EXPECT_DOUBLE_EQ(fresh.schedule.lr(), 0.4 / 16)
        << "the fifth step of the schedule from the new rate";
    Program plain(0.4);
    EXPECT_THAT(said_at_resume(group, folder.path(), plain, false, false),
                HasSubstr("'optimizer' goes on with the checkpoint's learning rate, 0.00625; the "
                          "program gave 0.4"));
    Program plain_fresh(0.4);
    said_at_resume(group, folder.path(), plain_fresh, false, true);
    EXPECT_DOUBLE_EQ(plain_fresh.schedule.lr(), 0.4);
    Program same;
    EXPECT_THAT(said_at_resume(group, folder.path(), same, true, false),
                Not(HasSubstr("learning rate")));
  });
}

TEST(CheckpointParts, OtherOptionsOfTheOptimizerAreSaid) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    save_program(group, folder.path());
    Program changed;
    dynamic_cast<torch::optim::SGDOptions&>(changed.optimizer.param_groups()[0].options())
        .weight_decay(0.5);
    const std::string said = said_at_resume(group, folder.path(), changed, true, false);
    EXPECT_THAT(said,
                HasSubstr("resume: 'optimizer' goes on with the checkpoint's weight_decay, 0.0; "
                          "the program gave 0.5 (set it after restore() to take that)"));
    EXPECT_THAT(said, Not(HasSubstr("momentum")));
    Program same;
    EXPECT_THAT(said_at_resume(group, folder.path(), same, true, false),
                Not(HasSubstr("goes on with the checkpoint's")));
  });
}

TEST(CheckpointParts, ANewLearningRateStaysWhenTrainingGoesBackToWhatItResumedFrom) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    save_program(group, folder.path());
    for (const bool with_schedule : {true, false}) {
      Program program(0.4);
      CheckpointsOptions options{
          .folder = folder.path(), .resume = true, .new_learning_rates = true};
      if (!with_schedule)
        options.leave_out = {"schedule"};
      Checkpoints checkpoints(group, options);
      checkpoints.add("model", program.net).add("optimizer", program.optimizer);
      if (with_schedule)
        checkpoints.add("schedule", program.schedule);
      checkpoints.add("ema", program.ema).add("data", program.loader);
      EXPECT_TRUE(checkpoints.restore());
      const double resumed = program.schedule.lr();
      checkpoints.save_when_due(6);
      EXPECT_EQ(checkpoints.go_back(1), 4);
      EXPECT_DOUBLE_EQ(program.schedule.lr(), resumed) << with_schedule;
    }
  });
}

TEST(CheckpointParts, AnotherPrecisionIsRefusedBeforeAnythingIsLoaded) {
  run_ranks(2, [](ProcessGroup& group) {
    const test::TempFolder own;
    std::string folder = own.path();
    group.broadcast_bytes(folder, 0);
    const auto make = [&](Program& program, Precision& precision, CheckpointsOptions options) {
      options.folder = folder;
      auto checkpoints = std::make_unique<Checkpoints>(group, options);
      checkpoints->add("model", program.net).add("optimizer", program.optimizer);
      checkpoints->add("schedule", program.schedule).add("precision", precision);
      return checkpoints;
    };
    Program saved;
    saved.run(2);
    Precision full(at::kCPU, "fp32"), half(at::kCPU, "fp16");
    make(saved, full, {})->save(2);
    Program program;
    const auto weight = program.net->weight.detach().clone();
    const auto said = message_of_error([&] { make(program, half, {.resume = true})->restore(); });
    EXPECT_THAT(
        said,
        HasSubstr(
            "expected 'precision' to have been saved with the number 'scale', which it needs"));
    EXPECT_THAT(said, HasSubstr("or name it in fresh"));
    EXPECT_TRUE(program.net->weight.equal(weight));
    EXPECT_EQ(program.schedule.steps(), 0);
    EXPECT_TRUE(make(program, half, {.resume = true, .fresh = {"precision"}})->restore());
    EXPECT_EQ(half.scale_value(), 65536);
    EXPECT_EQ(program.schedule.steps(), 2);
  });
}

// The training would go on from the averages, and the optimizer's state is that of the weights.
TEST(CheckpointParts, AveragesAreNotSavedAsTheWeights) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    Program program;
    program.run(4);
    Checkpoints checkpoints(group, {.folder = folder.path()});
    checkpoints.add("model", program.net).add("optimizer", program.optimizer);
    {
      const auto averages = program.ema.swap();
      std::string said;
      try {
        checkpoints.save(4);
      } catch (const Error& error) {
        said = error.message();
      }
      EXPECT_THAT(said, HasSubstr("save and restore outside of the swap's scope"));
    }
    EXPECT_NE(checkpoints.save(4), "");
  });
}

struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(std::vector<torch::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

struct OwnOptimizerWithState : OwnOptimizer {
  using OwnOptimizer::OwnOptimizer;
  SavedState state() const { return {.numbers = {{"steps", steps}}}; }
  void load_state(const SavedState& state) { steps = state.number("own optimizer", "steps"); }
  double steps = 0;
};

// Not hours later, at the first save.
TEST(CheckpointParts, AnOptimizerOfTheProgramsOwnIsRefusedWhenItIsAddedUnlessItHasAState) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    torch::nn::Linear net(2, 1);
    OwnOptimizer optimizer(net->parameters());
    OwnOptimizerWithState with_state(net->parameters());
    Checkpoints checkpoints(group, {.folder = folder.path(), .resume = true});
    try {
      checkpoints.add("optimizer", optimizer);
      ADD_FAILURE() << "it cannot be saved";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("give it state() and load_state()"));
    }
    checkpoints.add("model", net).add("own", with_state);
    with_state.steps = 7;
    checkpoints.save(1);
    with_state.steps = 0;
    checkpoints.restore();
    EXPECT_EQ(with_state.steps, 7);
  });
}

// Rank 1 alone is wrong, and all ranks are told, as the training begins.
TEST(CheckpointParts, AnOptimizerOfAnotherModelIsRefusedBeforeTheFirstSave) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(2, 1), other(2, 1);
    torch::optim::SGD optimizer(group.rank() == 1 ? other->parameters() : net->parameters(), 0.1);
    for (const bool is_by_pieces : {false, true}) {
      Checkpoints checkpoints(group, {.folder = folder.path(), .every = 500});
      if (is_by_pieces)
        checkpoints.add("model", whole_pieces(*net))
            .add("optimizer", optimizer, whole_pieces(*net));
      else
        checkpoints.add("model", net).add("optimizer", optimizer);
      const auto refusal = HasSubstr("expected only parameters of the model, got one of shape");
      EXPECT_THAT(message_of_error([&] { checkpoints.restore(); }), refusal);
      EXPECT_THAT(message_of_error([&] { checkpoints.save_or_stop(1); }), refusal);
      EXPECT_THAT(message_of_error([&] { checkpoints.save_when_due(1); }), refusal);
    }
  });
}

TEST(CheckpointParts, NumbersThatNoFileHasAreRefusedBeforeTheFirstSave) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    torch::nn::Linear net(2, 1);
    net->register_buffer("phases", torch::zeros({3}, torch::kComplexDouble));
    Checkpoints checkpoints(group, {.folder = folder.path()});
    checkpoints.add("model", net);
    EXPECT_THAT(message_of_error([&] { checkpoints.restore(); }),
                AllOf(HasSubstr("as 'phases', got CPUComplexDoubleType"),
                      HasSubstr("keep torch::view_as_real(it) in the module")));
    torch::nn::Linear as_told(2, 1);
    as_told->register_buffer("phases",
                             torch::view_as_real(torch::zeros({3}, torch::kComplexDouble)));
    Checkpoints saves(group, {.folder = folder.path()});
    saves.add("model", as_told);
    EXPECT_NE(saves.save(1), "");
  });
}

// SGD whose rate falls with the steps that it has counted.
struct CountingSgd : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    param_groups()[0].options().set_lr(0.1 / (1 + steps++));
    return SGD::step(std::move(closure));
  }
  double steps = 0;
};

struct CountingSgdWithState : CountingSgd {
  using CountingSgd::CountingSgd;
  SavedState state() const { return {.numbers = {{"steps", steps}}}; }
  void load_state(const SavedState& state) { steps = state.number("counting sgd", "steps"); }
};

torch::optim::SGDOptions with_momentum() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

void train_alone(torch::nn::Linear& net, torch::optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    net(torch::linspace(-1, 1, 6).reshape({3, 2})).square().mean().backward();
    optimizer.step();
  }
}

// It was saved as a plain SGD, and its count was lost.
TEST(CheckpointParts, AnOptimizerOfADerivedClassIsRefusedWithoutAState) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    torch::nn::Linear net(2, 1);
    CountingSgd optimizer(net->parameters(), with_momentum());
    Checkpoints checkpoints(group, {.folder = folder.path()});
    EXPECT_THAT(message_of_error([&] { checkpoints.add("optimizer", optimizer); }),
                AllOf(HasSubstr("CountingSgd, which is derived from one"),
                      HasSubstr("give it state() and load_state()")));
    EXPECT_THAT(
        message_of_error([&] { checkpoints.add("optimizer", optimizer, whole_pieces(*net)); }),
        HasSubstr("CountingSgd, which is derived from one"));
    EXPECT_THAT(message_of_error([&] {
                  save_checkpoint({.directory = folder.path()}, {*net, &optimizer}, {.step = 1});
                }),
                HasSubstr("CountingSgd, which is derived from one"));
  });
}

// Both what SGD has and what the class has besides: the momentum was lost where it had a state.
TEST(CheckpointParts, AnOptimizerOfADerivedClassIsSavedWithItsMembers) {
  run_ranks(1, [](ProcessGroup& group) {
    for (const bool is_by_pieces : {false, true}) {
      const test::TempFolder folder;
      torch::nn::Linear net(2, 1), resumed_net(2, 1);
      CountingSgdWithState optimizer(net->parameters(), with_momentum());
      CountingSgdWithState resumed(resumed_net->parameters(), with_momentum());
      const auto add_to = [&](Checkpoints& checkpoints, auto& model, auto& of_model) {
        if (is_by_pieces) {
          checkpoints.add("model", whole_pieces(*model));
          checkpoints.add("optimizer", of_model, whole_pieces(*model));
        } else {
          checkpoints.add("model", model).add("optimizer", of_model);
        }
      };
      train_alone(net, optimizer, 3);
      Checkpoints checkpoints(group, {.folder = folder.path()});
      add_to(checkpoints, net, optimizer);
      checkpoints.save(3);
      Checkpoints other(group, {.folder = folder.path(), .resume = true});
      add_to(other, resumed_net, resumed);
      ASSERT_TRUE(other.restore());
      EXPECT_EQ(resumed.steps, 3);
      train_alone(net, optimizer, 2);
      train_alone(resumed_net, resumed, 2);
      EXPECT_TRUE(torch::equal(net->weight, resumed_net->weight)) << is_by_pieces;
    }
  });
}

}  // namespace
}  // namespace muster::testing
