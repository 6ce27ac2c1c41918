// Checkpoints over a real process group (Gloo, ranks as threads).
#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster {
namespace {

class OverAGroup : public ::testing::TestWithParam<int> {};

TEST_P(OverAGroup, RanksResumeAlikeFromRankZerosDisk) {
  const test::TempFolder folder;
  const int size = GetParam();
  muster::testing::run_ranks(size, [&](ProcessGroup& group) {
    const auto directory = group.rank() == 0 ? folder.path() : "/nowhere";
    test::SmallModel model;
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    TORCH_CHECK(!load_latest_checkpoint(directory, {*model, &optimizer}, group));
    test::fill(*model, group.rank());
    test::train(model, optimizer, 1, 3);
    save_checkpoint({.directory = directory}, {*model, &optimizer}, {.step = 3}, group);

    test::SmallModel resumed;
    torch::optim::Adam other(resumed->parameters(), 0.5);
    const auto loaded = load_latest_checkpoint(directory, {*resumed, &other}, group);
    TORCH_CHECK(loaded && loaded->world_size == size);
    test::train(resumed, other, 4, 6);
    if (group.rank() == 0)
      test::train(model, optimizer, 4, 6);
    auto expected = test::copies(*model);  // of rank 0, after the broadcasts
    for (auto& tensor : expected)
      group.broadcast(tensor, 0);
    TORCH_CHECK(test::same(expected, test::copies(*resumed)));
  });
}

TEST_P(OverAGroup, AFailedSaveFailsOnEveryRankAndTheGroupLives) {
  const test::TempFolder folder;
  test::put_file(folder / "file", "");
  muster::testing::run_ranks(GetParam(), [&](ProcessGroup& group) {
    test::SmallModel model;
    const auto message = test::message_of(
        [&] { save_checkpoint({.directory = folder / "file"}, {*model}, {.step = 1}, group); });
    TORCH_CHECK(message.find("cannot make the folder") != std::string::npos, message);
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, OverAGroup, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace muster
