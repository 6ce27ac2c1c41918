// Files of a checkpoint that were cut, changed, mixed or lost: never loaded, the one before is.
#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Damage : public ::testing::Test {
 protected:
  void SetUp() override { save(1), save(2); }
  void save(int step) {
    test::fill(*model_, step);
    save_checkpoint({.directory = folder_.path()}, {*model_, &optimizer_}, {.step = step});
  }
  std::string file(int step, const std::string& name) const {
    return folder_ / ("step-" + std::to_string(step) + "/" + name);
  }
  // The step that is loaded; the warnings are in `warnings_`.
  int64_t loaded_step() {
    ::testing::internal::CaptureStderr();
    const auto loaded = load_latest_checkpoint(folder_.path(), {*model_, &optimizer_});
    warnings_ = ::testing::internal::GetCapturedStderr();
    if (!loaded)
      return -1;
    EXPECT_EQ(test::filled_with(*model_), static_cast<double>(loaded->position.step));
    return loaded->position.step;
  }

  test::TempFolder folder_;
  test::SmallModel model_;
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  std::string warnings_;
};

TEST_F(Damage, NoneLoadsTheNewest) {
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_EQ(warnings_, "");
}

TEST_F(Damage, FallsBackFromEveryDamagedFile) {
  for (const char* name : {"manifest.json", "model.safetensors", "optim.safetensors"}) {
    const auto path = file(2, name);
    const auto whole = test::get_file(path);
    const auto expect_fallback = [&](const std::string& what) {
      EXPECT_EQ(loaded_step(), 1) << name << " " << what;
      EXPECT_THAT(warnings_, AllOf(HasSubstr("step-2"), HasSubstr(name))) << what;
    };
    for (const size_t size : {size_t{0}, size_t{7}, whole.size() / 2, whole.size() - 2}) {
      test::put_file(path, whole.substr(0, size));
      expect_fallback("cut");
    }
    for (const size_t at : {size_t{3}, whole.size() / 2, whole.size() - 4}) {
      auto flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ 4);
      test::put_file(path, flipped);
      expect_fallback("flipped at " + std::to_string(at));
    }
    test::put_file(path, whole + "more");
    expect_fallback("longer");
    fs::remove(path);
    expect_fallback("removed");
    test::put_file(path, whole);
    EXPECT_EQ(loaded_step(), 2);
  }
}

TEST_F(Damage, ShardsOfMixedStepsAreRefused) {
  fs::copy_file(file(1, "model.safetensors"),
                file(2, "model.safetensors"),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_THAT(warnings_, HasSubstr("model.safetensors"));
}

TEST_F(Damage, ARenamedCheckpointIsRefused) {
  fs::rename(folder_ / "step-2", folder_ / "step-9");
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_THAT(warnings_, HasSubstr("a manifest of step 2"));
}

TEST_F(Damage, NoneWholeIsAnErrorThatSaysWhyForEach) {
  fs::resize_file(file(1, "model.safetensors"), 100);
  fs::remove(file(2, "manifest.json"));
  const auto message =
      message_of([&] { load_latest_checkpoint(folder_.path(), {*model_, &optimizer_}); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("step-1: "),
                    HasSubstr("got 100"),
                    HasSubstr("step-2: "),
                    HasSubstr("manifest.json")));
}

TEST_F(Damage, NoneAtAllIsNotAnError) {
  fs::remove_all(folder_ / "step-1");
  fs::remove_all(folder_ / "step-2");
  EXPECT_EQ(loaded_step(), -1);
  fs::create_directory(folder_ / "step-3.tmp-1-1");  // killed in its first save
  EXPECT_EQ(loaded_step(), -1);
}

TEST_F(Damage, AChosenCheckpointHasNoFallback) {
  EXPECT_EQ(load_checkpoint(folder_ / "step-1", {*model_, &optimizer_}).position.step, 1);
  fs::resize_file(file(1, "optim.safetensors"), 8);
  EXPECT_THROW(load_checkpoint(folder_ / "step-1", {*model_, &optimizer_}), Error);
  EXPECT_THROW(load_checkpoint(folder_ / "step-77", {*model_, &optimizer_}), Error);
}

TEST_F(Damage, DamagedOnesAreReplacedAndNotCountedAsKept) {
  fs::resize_file(file(2, "model.safetensors"), 100);
  test::fill(*model_, 3);
  save_checkpoint(
      {.directory = folder_.path(), .keep_last = 2}, {*model_, &optimizer_}, {.step = 3});
  EXPECT_TRUE(fs::exists(folder_ / "step-1"));
  test::fill(*model_, 2);
  save_checkpoint(
      {.directory = folder_.path(), .keep_last = 2}, {*model_, &optimizer_}, {.step = 2});
  EXPECT_FALSE(fs::exists(folder_ / "step-1"));
  fs::remove_all(folder_ / "step-3");
  EXPECT_EQ(loaded_step(), 2);
}

}  // namespace
}  // namespace muster
