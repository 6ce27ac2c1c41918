#include "muster/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/folder_lock.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/saving_lock.h"
#include "tests/checkpoint/model.h"
#include "tests/checkpoint/thread_peers.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::on_ranks;
using test::SmallModel;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoint : public ::testing::Test {
 protected:
  test::TempFolder folder_;
  SmallModel model_;
};

TEST_F(Checkpoint, KeepsPositionAndUserTexts) {
  const TrainingPosition position{
      .step = 12, .epoch = 1, .batch = 2, .epoch_samples = 64, .samples_seen = 1502};
  const auto path =
      save_checkpoint({.directory = folder_ / "checkpoints", .user = {{"lr_phase", "warm-up"}}},
                      {*model_},
                      position);
  EXPECT_EQ(path, folder_ / "checkpoints/step-12");
  EXPECT_THAT(test::names_in(path), ElementsAre("manifest.json", "model.safetensors"));
  const auto manifest = nlohmann::json::parse(test::get_file(path + "/manifest.json"));
  EXPECT_EQ(manifest["schema"], "muster.checkpoint/1");
  EXPECT_EQ(manifest["samples_seen"], 1502);

  const auto loaded = load_latest_checkpoint(folder_ / "checkpoints", {*model_});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->position, position);
  EXPECT_EQ(loaded->world_size, 1);
  EXPECT_EQ(loaded->user.at("lr_phase"), "warm-up");
  EXPECT_EQ(loaded->path, path);
}

TEST_F(Checkpoint, NoFolderIsNoCheckpoint) {
  EXPECT_FALSE(load_latest_checkpoint(folder_ / "none", {*model_}));
}

TEST_F(Checkpoint, KeepsTheLastOnes) {
  for (int step = 1; step <= 5; ++step)
    save_checkpoint({.directory = folder_.path(), .keep_last = 2}, {*model_}, {.step = step});
  EXPECT_THAT(test::names_in(folder_.path()), ElementsAre("step-4", "step-5"));
  for (int step = 6; step <= 8; ++step)
    save_checkpoint({.directory = folder_.path(), .keep_last = 0}, {*model_}, {.step = step});
  EXPECT_THAT(test::names_in(folder_.path()),
              ElementsAre("step-4", "step-5", "step-6", "step-7", "step-8"));
}

TEST_F(Checkpoint, TheLastSavedIsTheNewestWhateverItsStep) {
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 50});
  save_checkpoint({.directory = folder_.path(), .keep_last = 1}, {*model_}, {.step = 40});
  EXPECT_THAT(test::names_in(folder_.path()), ElementsAre("step-40"));
}

TEST_F(Checkpoint, TheSameStepIsReplaced) {
  test::fill(*model_, 1);
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 3});
  test::fill(*model_, 2);
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 3});
  test::fill(*model_, 0);
  ASSERT_TRUE(load_latest_checkpoint(folder_.path(), {*model_}));
  EXPECT_EQ(test::filled_with(*model_), 2);
  EXPECT_THAT(test::names_in(folder_.path()), ElementsAre("step-3"));
}

TEST_F(Checkpoint, LoadsInPlace) {
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 3});
  test::SmallModel other;
  const auto* const memory = other->first->weight.const_data_ptr();
  load_latest_checkpoint(folder_.path(), {*other});
  EXPECT_TRUE(test::same(test::copies(*model_), test::copies(*other)));
  EXPECT_EQ(other->first->weight.const_data_ptr(), memory);
  EXPECT_TRUE(other->first->weight.requires_grad());
}

TEST_F(Checkpoint, RefusesAnotherModelAndChangesNothing) {
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 1});
  SmallModel wider(16);
  const auto before = test::copies(*wider);
  EXPECT_THAT(message_of([&] { load_latest_checkpoint(folder_.path(), {*wider}); }),
              AllOf(HasSubstr("'first.weight'"), HasSubstr("F32[16, 4]"), HasSubstr("F32[8, 4]")));
  EXPECT_TRUE(test::same(before, test::copies(*wider)));
}

TEST_F(Checkpoint, ModelWithoutOptimizer) {
  torch::optim::Adam optimizer(model_->parameters());
  save_checkpoint({.directory = folder_ / "without"}, {*model_}, {.step = 1});
  EXPECT_THAT(
      message_of([&] { load_latest_checkpoint(folder_ / "without", {*model_, &optimizer}); }),
      HasSubstr("saved without its optimizer"));
  save_checkpoint({.directory = folder_ / "with"}, {*model_, &optimizer}, {.step = 1});
  EXPECT_TRUE(load_latest_checkpoint(folder_ / "with", {*model_}));
}

TEST_F(Checkpoint, AFolderThatAnotherJobSavesIntoCanBeReadAlone) {
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 1});
  const FolderLock other({.folder = folder_.path(), .file = kSavingLock, .start = "another"});
  EXPECT_THAT(
      message_of([&] { save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 2}); }),
      HasSubstr("expected no job that still writes there, got one (process "));
  EXPECT_TRUE(load_latest_checkpoint(folder_.path(), {*model_}));
  EXPECT_EQ(list_checkpoints(folder_.path()).size(), 1U);
}

TEST_F(Checkpoint, RefusesBadArguments) {
  EXPECT_THROW(save_checkpoint({}, {*model_}, {.step = 1}), Error);
  EXPECT_THROW(save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = -1}), Error);
  test::put_file(folder_ / "file", "");
  EXPECT_THROW(save_checkpoint({.directory = folder_ / "file"}, {*model_}, {.step = 1}), Error);
}

TEST_F(Checkpoint, PythonReadsTheModel) {
  test::fill(*model_, 3);
  const auto path = save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 1});
  const auto output = test::run_python("tests/checkpoint/python_safetensors.py",
                                       "read " + path + "/model.safetensors");
  if (!output)
    GTEST_SKIP() << "no Python with safetensors in .deps";
  const auto seen = nlohmann::json::parse(*output)["tensors"];
  EXPECT_EQ(seen["first.weight"]["shape"], (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(seen["first.bias"]["values"], std::vector<double>(8, 3.0));
  EXPECT_EQ(seen["norm.num_batches_tracked"]["dtype"], "torch.int64");
}

// Only rank 0 has the folder.
TEST_F(Checkpoint, OtherRanksGetAllFromRankZero) {
  const auto thrown = on_ranks(3, [&](const Peers& peers) {
    SmallModel model;
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    const auto directory = peers.rank() == 0 ? folder_.path() : "/nowhere";
    TORCH_CHECK(!load_latest_checkpoint(directory, {*model, &optimizer}, peers));
    test::train(model, optimizer, 1, 3);
    if (peers.rank() != 0)
      test::fill(*model, 99);
    const auto path =
        save_checkpoint({.directory = directory}, {*model, &optimizer}, {.step = 3}, peers);
    TORCH_CHECK(path == folder_ / "step-3");

    SmallModel resumed;
    torch::optim::Adam other(resumed->parameters(), 0.5);
    const auto loaded = load_latest_checkpoint(directory, {*resumed, &other}, peers);
    TORCH_CHECK(loaded && loaded->position.step == 3 && loaded->world_size == 3);
    test::train(resumed, other, 4, 6);
    if (peers.rank() == 0) {
      test::train(model, optimizer, 4, 6);
      TORCH_CHECK(test::same(test::copies(*model), test::copies(*resumed)));
    }
    // All ranks went on alike.
    auto sum = torch::zeros({1});
    for (const auto& tensor : test::copies(*resumed))
      sum += tensor.to(torch::kFloat32).sum();
    auto zeros = sum.clone();
    peers.share(zeros);
    TORCH_CHECK(torch::equal(sum, zeros));
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST_F(Checkpoint, AFailingSaveFailsEverywhere) {
  test::put_file(folder_ / "file", "");
  const auto thrown = on_ranks(2, [&](const Peers& peers) {
    SmallModel model;
    save_checkpoint({.directory = folder_ / "file"}, {*model}, {.step = 1}, peers);
  });
  EXPECT_THAT(thrown, Each(HasSubstr("cannot make the folder")));
}

TEST_F(Checkpoint, ADifferentModelOnOneRankFailsEverywhere) {
  save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 1});
  const auto thrown = on_ranks(3, [&](const Peers& peers) {
    SmallModel model(peers.rank() == 2 ? 16 : 8);
    const auto before = test::copies(*model);
    try {
      load_latest_checkpoint(folder_.path(), {*model}, peers);
    } catch (...) {
      TORCH_CHECK(test::same(before, test::copies(*model)));
      throw;
    }
  });
  EXPECT_THAT(thrown, Each(HasSubstr("'first.weight'")));
  EXPECT_THAT(thrown[0], HasSubstr("(rank 2)"));
}

TEST_F(Checkpoint, DamageOnRankZeroFailsEverywhere) {
  const auto path = save_checkpoint({.directory = folder_.path()}, {*model_}, {.step = 1});
  fs::resize_file(path + "/model.safetensors", 50);
  const auto thrown = on_ranks(2, [&](const Peers& peers) {
    SmallModel model;
    load_latest_checkpoint(folder_.path(), {*model}, peers);
  });
  EXPECT_THAT(thrown, Each(HasSubstr("got only damaged ones")));
}

}  // namespace
}  // namespace muster
