// Which checkpoint a training goes on from, or back to, when its folder has branches and other
// launches' ones.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>

#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model whose only weight says of which save it is.
struct Marked {
  explicit Marked(ProcessGroup& group, const CheckpointsOptions& options)
      : checkpoints(group, options) {
    checkpoints.add("model", net);
  }

  void save(int64_t step, double mark) {
    {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(mark);
    }
    checkpoints.save(step);
  }
  void save(int64_t step) { save(step, static_cast<double>(step)); }
  double mark() const { return net->weight.item<double>(); }

  // The mark of what go_back() loads when training is at `step`.
  double back_from(int64_t step, int64_t steps) {
    checkpoints.save_when_due(step);
    checkpoints.go_back(steps);
    return mark();
  }

  torch::nn::Linear net{torch::nn::LinearOptions(1, 1).bias(false)};
  Checkpoints checkpoints;
};

std::vector<std::string> kept(const std::string& folder) {
  std::vector<std::string> names;
  for (const SavedFolder& one : list_by_saving(folder))
    names.push_back(std::string(one.is_abandoned ? "-" : "+") +
                    one.path.substr(one.path.rfind('/') + 6));
  return names;
}

class Branches : public ::testing::TestWithParam<bool> {
 protected:
  CheckpointsOptions with(CheckpointsOptions options) const {
    options.folder = folder_.path();
    options.background = GetParam();
    return options;
  }
  test::TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Writing, Branches, ::testing::Bool(), [](const auto& info) {
  return info.param ? "background" : "foreground";
});

TEST_P(Branches, GoingBackTwiceComesToNoAbandonedStep) {
  run_ranks(1, [&](ProcessGroup& group) {
    Marked training(group, with({.keep_last = 0}));
    for (const int64_t step : {10, 20, 30})
      training.save(step);
    EXPECT_EQ(training.back_from(35, 15), 20);
    training.save(40);
    training.save(50);
    EXPECT_EQ(training.back_from(55, 12), 40);
    EXPECT_EQ(training.back_from(56, 20), 20) << "30 was abandoned";
  });
}

TEST_P(Branches, AResumedTrainingKnowsWhatWasAbandonedBefore) {
  run_ranks(2, [&](ProcessGroup& group) {
    {
      Marked first(group, with({.keep_last = 0}));
      for (const int64_t step : {10, 20, 30})
        first.save(step);
      EXPECT_EQ(first.back_from(35, 15), 20);
      first.save(40);
    }
    Marked resumed(group, with({.keep_last = 0, .resume = true}));
    EXPECT_TRUE(resumed.checkpoints.restore());
    EXPECT_EQ(resumed.mark(), 40);
    EXPECT_EQ(resumed.back_from(45, 10), 20);
    resumed.checkpoints.finish();
  });
  EXPECT_THAT(kept(folder_.path()), ElementsAre("+40", "+20", "+10", "-30"));
}

TEST_P(Branches, AReplacedStepIsOfTheNewBranch) {
  run_ranks(1, [&](ProcessGroup& group) {
    {
      Marked first(group, with({.keep_last = 0}));
      for (const int64_t step : {10, 20, 30})
        first.save(step);
    }
    {
      Marked second(group, with({.keep_last = 0, .resume_from = "step-10"}));
      EXPECT_TRUE(second.checkpoints.restore());
      second.save(20, 2020);
    }
    Marked third(group, with({.keep_last = 0, .resume = true}));
    EXPECT_TRUE(third.checkpoints.restore());
    EXPECT_EQ(third.mark(), 2020);
    EXPECT_EQ(third.back_from(35, 5), 2020);
  });
}

TEST_P(Branches, AbandonedOnesArePrunedBeforeTheAncestors) {
  run_ranks(1, [&](ProcessGroup& group) {
    {
      Marked first(group, with({}));
      for (const int64_t step : {10, 20, 30})
        first.save(step);
    }
    {
      Marked second(group, with({.resume_from = "step-10"}));
      second.checkpoints.restore();
      second.save(15);
      second.checkpoints.finish();
      EXPECT_THAT(kept(folder_.path()), ElementsAre("+15", "+10", "-30"));
    }
    std::ofstream(folder_ / "step-15/model.safetensors", std::ios::app) << "x";
    Marked third(group, with({.resume = true}));
    EXPECT_TRUE(third.checkpoints.restore());
    EXPECT_EQ(third.mark(), 10) << "the damaged one's ancestor, and not the abandoned step";
  });
}

TEST_P(Branches, AnAbandonedOneIsBetterThanNone) {
  run_ranks(1, [&](ProcessGroup& group) {
    {
      Marked first(group, with({}));
      first.save(10);
      first.save(20);
      first.checkpoints.go_back(5);
      first.save(30);
    }
    for (const char* step : {"10", "30"})
      std::ofstream(folder_ / ("step-" + std::string(step) + "/model.safetensors"), std::ios::app)
          << "x";
    ::testing::internal::CaptureStderr();
    Marked last(group, with({.resume = true}));
    EXPECT_TRUE(last.checkpoints.restore());
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("is of a branch that the training had abandoned"));
    EXPECT_EQ(last.mark(), 20);
  });
}

// A run id may be used again, as Slurm's job id after a requeue.
TEST_P(Branches, RanksThatStartAgainTakeTheirOwnLaunchsAlone) {
  run_ranks(1, [&](ProcessGroup& group) {
    {
      Marked first(group, with({.run_id = "J7", .launch = "first"}));
      for (const int64_t step : {10, 20, 30})
        first.save(step);
    }
    const auto restored = [&](CheckpointsOptions options) {
      options.run_id = "J7";
      options.launch = "second";
      options.attempt = 1;
      Marked again(group, with(options));
      return again.checkpoints.restore() ? again.mark() : 0;
    };
    EXPECT_EQ(restored({}), 0) << "this launch has saved nothing, and was not to resume";
    EXPECT_EQ(restored({.resume_from = "step-10"}), 10);
    EXPECT_EQ(restored({.resume = true}), 30);
    {
      Marked second(group, with({.resume_from = "step-10", .run_id = "J7", .launch = "second"}));
      second.checkpoints.restore();
      second.save(12);
    }
    EXPECT_EQ(restored({.resume_from = "step-10"}), 12);
  });
}

// A part with another number, tensor and text on each rank.
struct Own {
  explicit Own(int rank)
      : value(rank), name("rank " + std::to_string(rank)), tensor(torch::full({rank + 1}, rank)) {}
  SavedState state() const {
    return {
        .numbers = {{"value", value}}, .tensors = {{"tensor", tensor}}, .texts = {{"name", name}}};
  }
  void load_state(const SavedState& state) {
    value = state.number("own", "value");
    tensor = state.tensor("own", "tensor");
    name = state.text("own", "name");
  }
  double value;
  std::string name;
  torch::Tensor tensor;
};

TEST_P(Branches, StatesThatDifferBetweenRanksComeBackToTheirRank) {
  run_ranks(3, [&](ProcessGroup& group) {
    {
      Own own(group.rank());
      Marked training(group, with({}));
      training.checkpoints.add_per_rank("own", own);
      training.save(1);
    }
    Own own(7);
    Marked again(group, with({.resume = true}));
    again.checkpoints.add_per_rank("own", own);
    EXPECT_TRUE(again.checkpoints.restore());
    EXPECT_EQ(own.value, group.rank());
    EXPECT_EQ(own.name, "rank " + std::to_string(group.rank()));
    EXPECT_TRUE(own.tensor.equal(torch::full({group.rank() + 1}, group.rank())));
  });
  run_ranks(2, [&](ProcessGroup& group) {
    Own own(0);
    Marked fewer(group, with({.resume = true}));
    fewer.checkpoints.add_per_rank("own", own);
    EXPECT_THAT(test::message_of([&] { fewer.checkpoints.restore(); }),
                HasSubstr("expected 3 ranks, of which each saved a state of 'own', got 2"));
  });
}

TEST_P(Branches, ValuesOfOnesOwnComeBack) {
  const std::string bytes("any\0bytes \xff", 11);
  run_ranks(2, [&](ProcessGroup& group) {
    {
      SavedState notes{.numbers = {{"best", 0.25}},
                       .tensors = {{"seen", torch::arange(3)}},
                       .texts = {{"note", bytes}, {"empty", ""}}};
      Marked training(group, with({}));
      training.checkpoints.add("notes", notes);
      training.save(1);
    }
    SavedState notes;
    Marked again(group, with({.resume = true}));
    again.checkpoints.add("notes", notes);
    EXPECT_TRUE(again.checkpoints.restore());
    EXPECT_EQ(notes.numbers.at("best"), 0.25);
    EXPECT_TRUE(notes.tensors.at("seen").equal(torch::arange(3)));
    EXPECT_EQ(notes.texts.at("note"), bytes);
    EXPECT_EQ(notes.texts.at("empty"), "");
  });
}

// The folds of one program, or its two models, with the folder that Checkpoints has by itself.
TEST(OneFolder, IsForOneTrainingOfAProgram) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    const CheckpointsOptions options{.folder = folder.path(), .every = 1, .keep_last = 1};
    const auto refused = [](const auto& saves) {
      try {
        saves();
      } catch (const Error& error) {
        return error.message();
      }
      return std::string();
    };
    Marked first(group, options), beside(group, options);
    first.save(1);
    EXPECT_THAT(refused([&] { beside.save(2); }),
                HasSubstr("another Checkpoints of this program has saved step 1"));
    Marked later(group, options);
    EXPECT_THAT(refused([&] { later.checkpoints.restore(); }),
                HasSubstr("give each a folder of its own"));
    first.save(3);
    CheckpointsOptions resuming = options;
    resuming.resume = true;
    Marked resumed(group, resuming);
    resumed.checkpoints.restore();
    EXPECT_EQ(resumed.mark(), 3);
    resumed.save(4);
    EXPECT_THAT(refused([&] { first.save(5); }), HasSubstr("has saved step 4"));
  });
}

// Two models of one loop: the second is refused before either trains.
TEST(OneFolder, IsRefusedToTheSecondTrainingBeforeItsFirstStep) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    const CheckpointsOptions options{.folder = folder.path(), .every = 500};
    {
      Marked gone(group, options);
      gone.checkpoints.restore();
    }
    Marked first(group, options), second(group, options);
    first.checkpoints.restore();
    EXPECT_THAT(test::message_of([&] { second.checkpoints.restore(); }),
                HasSubstr("another Checkpoints of this program has begun to train"));
  });
}

// A loop that restores nothing and saves when it is due, which is hours later.
TEST(OneFolder, IsRefusedToASecondTrainingThatOnlySavesInItsFirstStep) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    const CheckpointsOptions options{.folder = folder.path(), .every = 500};
    Marked first(group, options), second(group, options);
    EXPECT_EQ(first.checkpoints.save_when_due(1), "");
    EXPECT_THAT(test::message_of([&] { second.checkpoints.save_when_due(1); }),
                HasSubstr("another Checkpoints of this program has begun to train"));
  });
}

// A program that saves its last model by a Checkpoints of its own has trained until then.
TEST(OneFolder, OfAModelThatIsSavedAtTheEndIsWarnedOfOnce) {
  const test::TempFolder folder;
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    Marked trained(group, {.folder = folder.path(), .every = 1});
    trained.checkpoints.restore();
    trained.save(1);
    Marked last(group, {.folder = folder.path()});
    last.save(2);
    last.save(3);
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(folder.path() + "', where another Checkpoints of this program"));
  EXPECT_THAT(said, HasSubstr("has saved step 1, which this one did not restore"));
  EXPECT_EQ(said.find("has saved step"), said.rfind("has saved step")) << said;
}

std::string said_at_saves_of(const std::function<double(int rank)>& mark) {
  const test::TempFolder folder;
  ::testing::internal::CaptureStderr();
  run_ranks(3, [&](ProcessGroup& group) {
    Marked trained(group, {.folder = folder.path()});
    for (int64_t step = 1; step <= 2; ++step)
      trained.save(step, mark(group.rank()));
  });
  return ::testing::internal::GetCapturedStderr();
}

// Experts of each rank's own, or ranks that train alone.
TEST(OwnValues, OfParametersThatAreSavedOfRank0AloneAreSaidOnce) {
  const auto said = said_at_saves_of([](int rank) { return rank < 2 ? 1 : 2; });
  EXPECT_THAT(said, HasSubstr("got other values of 'weight' on rank 2: only rank 0's are saved"));
  EXPECT_EQ(said.find("only rank 0's"), said.rfind("only rank 0's")) << said;
  EXPECT_EQ(said_at_saves_of([](int rank) { return 1 + 1e-9 * rank; }), "");
}

// A rank that has other parameters decides as the others do, at the second save too.
TEST(OwnValues, AreFoundAlikeByARankWithFewerParameters) {
  const test::TempFolder folder;
  run_ranks(3, [&](ProcessGroup& group) {
    const bool has_none = group.rank() == 2;
    auto net = std::make_shared<torch::nn::Module>();
    if (!has_none)
      net->register_parameter("weight", torch::full({2}, 1.0 + group.rank()));
    Checkpoints checkpoints(group, {.folder = folder.path()});
    checkpoints.add("model", net);
    checkpoints.save(1);
    checkpoints.save(2);
    group.barrier();
  });
}

}  // namespace
}  // namespace muster::testing
