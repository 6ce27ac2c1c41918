// Checkpoints of ranks that train alone for some steps: each goes on with its own model and
// optimizer, bit for bit; other ranks begin with the mean.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "muster/base/error.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/parallel/averaging/diloco.h"
#include "muster/parallel/averaging/gossip.h"
#include "muster/parallel/averaging/local_sgd.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/data/files.h"
#include "tests/parallel/averaging/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamW;

// A rank's training: its model, AdamW, and what meets the other ranks.
template <class Meeting>
struct OwnTraining {
  OwnTraining(ProcessGroup& group,
              const std::function<Meeting(std::vector<at::Tensor>, ProcessGroup)>& meet)
      : training(make()),
        adamw(training.net->parameters(), 0.01),
        meeting(meet(parameters(), group)) {}

  static LocalTraining make() {
    static std::mutex mutex;  // torch::manual_seed is the process's
    at::set_num_threads(1);
    const std::lock_guard lock(mutex);
    return local_mlp();
  }

  std::vector<at::Tensor> parameters() const { return training.net->parameters(); }

  void learn(int worker, int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      adamw.zero_grad();
      training.loss(worker, step).backward();
      adamw.step();
      meeting.step();
    }
  }

  void add_to(Checkpoints& checkpoints) {
    const auto pieces = own_pieces(*training.net);
    checkpoints.add("model", pieces).add("optimizer", adamw, pieces).add("meeting", meeting);
  }

  LocalTraining training;
  AdamW adamw;
  Meeting meeting;
};

CheckpointsOptions own_options(const std::string& folder, bool background = false) {
  return {.folder = folder, .keep_last = 0, .resume = true, .background = background};
}

template <class Meeting>
using Meet = std::function<Meeting(std::vector<at::Tensor>, ProcessGroup)>;

// Training that is saved after `saved` of 11 steps, and another that goes on from there.
template <class Meeting>
void expect_same_bits(int ranks,
                      int64_t saved,
                      const Meet<Meeting>& meet,
                      bool background = false) {
  const test::TempFolder folder;
  run_ranks(ranks, [&](ProcessGroup& group) {
    OwnTraining<Meeting> whole(group, meet), resumed(group, meet);
    {
      Checkpoints checkpoints(group, own_options(folder.path(), background));
      whole.add_to(checkpoints);
      whole.learn(group.rank(), 0, saved);
      checkpoints.save(saved);
      whole.learn(group.rank(), saved, 11);  // while it is written
      checkpoints.finish();
    }
    Checkpoints checkpoints(group, own_options(folder.path()));
    resumed.add_to(checkpoints);
    ASSERT_TRUE(checkpoints.restore());
    EXPECT_EQ(checkpoints.step(), saved);
    resumed.learn(group.rank(), saved, 11);
    EXPECT_EQ(largest_difference(whole.parameters(), resumed.parameters()), 0)
        << "rank " << group.rank();
  });
}

const Meet<LocalSGD> kLocal = [](const std::vector<at::Tensor>& parameters, ProcessGroup group) {
  return LocalSGD(parameters, std::move(group), {.every = 3, .start = 2});
};

TEST(OwnCheckpoints, LocalSGDGoesOnBitForBitFromAnAverageAndFromBetweenTwo) {
  for (const int64_t saved : {5, 6, 7})
    expect_same_bits(3, saved, kLocal);
  expect_same_bits(1, 6, kLocal);
  expect_same_bits(2, 6, kLocal, /*background=*/true);
}

TEST(OwnCheckpoints, DiLoCoGoesOnBitForBit) {
  const Meet<DiLoCo> meet = [](const auto& parameters, auto group) {
    return DiLoCo(parameters, std::move(group), {.every = 3});
  };
  for (const int64_t saved : {2, 3, 7})
    expect_same_bits(3, saved, meet);
}

TEST(OwnCheckpoints, GossipGoesOnBitForBit) {
  const Meet<GossipAverage> meet = [](const auto& parameters, auto group) {
    return GossipAverage(parameters, std::move(group));
  };
  expect_same_bits(3, 4, meet);
}

// By tensor's name: the parameters, and AdamW's first moments.
using OwnValues = std::map<std::string, at::Tensor>;

OwnValues own_values(const torch::nn::Module& net, torch::optim::Optimizer& adamw) {
  OwnValues values;
  for (const auto& item : net.named_parameters()) {
    values[item.key()] = item.value().detach().to(at::kDouble);
    const auto& state = static_cast<torch::optim::AdamWParamState&>(
        *adamw.state().at(item.value().unsafeGetTensorImpl()));
    values[item.key() + ".exp_avg"] = state.exp_avg().to(at::kDouble);
    values[item.key() + ".step"] = at::scalar_tensor(state.step(), at::kDouble);
  }
  return values;
}

// The mean over what three ranks have after `steps`, as floats; saved in the folder.
OwnValues means_of_three(const std::string& folder, int64_t steps) {
  std::vector<OwnValues> of_ranks(3);
  run_ranks(3, [&](ProcessGroup& group) {
    OwnTraining<LocalSGD> mine(group, kLocal);
    mine.learn(group.rank(), 0, steps);
    Checkpoints checkpoints(group, own_options(folder));
    mine.add_to(checkpoints);
    checkpoints.save(steps);
    of_ranks[static_cast<size_t>(group.rank())] = own_values(*mine.training.net, mine.adamw);
  });
  OwnValues means;
  for (const auto& [name, value] : of_ranks[0])
    means[name] =
        ((value + of_ranks[1].at(name) + of_ranks[2].at(name)) / 3).to(at::kFloat).to(at::kDouble);
  return means;
}

void expect_values(const OwnValues& values, const OwnValues& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(torch::equal(values.at(name), value)) << name;
}

TEST(OwnCheckpoints, AnotherNumberOfRanksBeginsWithTheMean) {
  for (const int64_t steps : {5, 7}) {
    const test::TempFolder folder;
    const OwnValues means = means_of_three(folder.path(), steps);
    for (const int ranks : {1, 2, 4}) {
      run_ranks(ranks, [&](ProcessGroup& group) {
        OwnTraining<LocalSGD> mine(group, kLocal);
        Checkpoints checkpoints(group, own_options(folder.path()));
        mine.add_to(checkpoints);
        ASSERT_TRUE(checkpoints.restore());
        expect_values(own_values(*mine.training.net, mine.adamw), means);
        EXPECT_EQ(mine.meeting.steps(), steps);
      });
    }
  }
}

// Plain training and fully sharded training go on from the mean; and local SGD from them.
TEST(OwnCheckpoints, OtherWaysGoOnFromTheMeanAndBack) {
  const test::TempFolder folder;
  OwnValues means;
  {
    run_ranks(3, [&](ProcessGroup& group) {
      OwnTraining<LocalSGD> mine(group, kLocal);
      mine.learn(group.rank(), 0, 7);
      Checkpoints checkpoints(group, own_options(folder.path()));
      const auto pieces = own_pieces(*mine.training.net);
      checkpoints.add("model", pieces).add("optimizer", mine.adamw, pieces);
      checkpoints.save(7);
    });
    const test::TempFolder other;
    means = means_of_three(other.path(), 7);
  }
  for (const int ranks : {3, 2}) {  // as many ranks, too
    run_ranks(ranks, [&](ProcessGroup& group) {
      const LocalTraining plain = OwnTraining<LocalSGD>::make();
      AdamW adamw(plain.net->parameters(), 0.5);
      Checkpoints checkpoints(group, own_options(folder.path()));
      checkpoints.add("model", plain.net).add("optimizer", adamw);
      ASSERT_TRUE(checkpoints.restore());
      expect_values(own_values(*plain.net, adamw), means);
      checkpoints.save(8);
    });
    run_ranks(2, [&](ProcessGroup& group) {
      OwnTraining<LocalSGD> mine(group, kLocal);
      const auto pieces = own_pieces(*mine.training.net);
      Checkpoints checkpoints(group, own_options(folder.path()));
      checkpoints.add("model", pieces).add("optimizer", mine.adamw, pieces);
      ASSERT_TRUE(checkpoints.restore());
      EXPECT_EQ(checkpoints.step(), 8);
      expect_values(own_values(*mine.training.net, mine.adamw), means);
    });
    std::filesystem::remove_all(folder / "step-8");
  }
}

// Rank 0's are where every tool looks for the model, and every other rank writes two files.
TEST(OwnCheckpoints, FilesOfRanks) {
  const test::TempFolder folder;
  means_of_three(folder.path(), 5);
  for (const char* file : {"model-00000-of-00003",
                           "optim-00000-of-00003",
                           "own-00001-model",
                           "own-00001-optim",
                           "own-00002-model",
                           "own-00002-optim"})
    EXPECT_TRUE(std::filesystem::exists(folder / ("step-5/" + std::string(file) + ".safetensors")))
        << file;
  EXPECT_FALSE(std::filesystem::exists(folder / "step-5/model-00001-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-5/own-00000-model.safetensors"));
}

TEST(OwnCheckpoints, LBFGSIsRefused) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    const LocalTraining training = OwnTraining<LocalSGD>::make();
    torch::optim::LBFGS lbfgs(training.net->parameters());
    Checkpoints checkpoints(group, own_options(folder.path()));
    const auto pieces = own_pieces(*training.net);
    checkpoints.add("model", pieces).add("optimizer", lbfgs, pieces);
    EXPECT_THAT(test::message_of([&] { checkpoints.save(1); }),
                HasSubstr("got each rank's own '0.weight'"));
  });
}

}  // namespace
}  // namespace muster::testing
