#include "muster/launch/score_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

MeasuredScore measured(const std::string& device, double score, const std::string& model = "M",
                       const std::string& driver = "550") {
  return {.device = device,
          .host = "n0",
          .model = model,
          .driver = driver,
          .dtype = "float32",
          .score = score,
          .batch_size = 512,
          .since_seconds = 1};
}

Inventory two_gpus(const std::string& driver = "550") {
  Inventory inventory{.source = "test", .hosts = {gpu_host(0, 2)}};
  inventory.hosts[0].driver_version = driver;
  return inventory;
}

std::string scratch_file(const char* name) {
  const std::string path = testing::TempDir() + "/muster-scores-" + name + "/deep/scores.json";
  std::filesystem::remove_all(std::filesystem::path(path).parent_path().parent_path());
  return path;
}

TEST(ScoreCache, ComesBackAsItWasWritten) {
  const std::string path = scratch_file("roundtrip");
  EXPECT_THAT(read_score_cache(path), IsEmpty()) << "no file yet";
  const std::vector<MeasuredScore> scores = {measured(test_uuid(0, 0), 1234.5), measured("cpu", 3)};
  write_score_cache(path, scores);
  EXPECT_EQ(read_score_cache(path), scores);
}

TEST(ScoreCache, DamageIsNamed) {
  const std::string path = scratch_file("damage");
  write_score_cache(path, {measured("cpu", 3)});
  const std::string text = read_file(path);
  const auto error_with = [&](const std::string& from, const std::string& to) -> std::string {
    std::string changed = text;
    write_file(path, changed.replace(changed.find(from), from.size(), to));
    try {
      read_score_cache(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_with("3.0", "-3.0"), HasSubstr("expected a number above 0 at devices[0].score, got -3"));
  EXPECT_THAT(error_with("muster.scores/1", "muster.scores/9"), HasSubstr("muster.scores/9"));
  EXPECT_THAT(error_with("{", "["), HasSubstr(path));
}

TEST(ScoreCache, GoesByUuidAndDriver) {
  const std::vector<MeasuredScore> scores = {measured(test_uuid(0, 0), 100)};
  EXPECT_THAT(measured_scores(scores, two_gpus()), ElementsAre(Pair(test_uuid(0, 0), 100)));
  EXPECT_THAT(measured_scores(scores, two_gpus("560")), IsEmpty()) << "another driver, another speed";
  EXPECT_FALSE(has_every_gpu(measured_scores(scores, two_gpus()), two_gpus()));
}

TEST(ScoreCache, NoiseIsNoDifference) {
  const auto both = [](double second, const std::string& model = "M") {
    const Scores scores = measured_scores(
        {measured(test_uuid(0, 0), 100), measured(test_uuid(0, 1), second, model)}, two_gpus());
    EXPECT_TRUE(has_every_gpu(scores, two_gpus()));
    return std::pair(scores.at(test_uuid(0, 0)), scores.at(test_uuid(0, 1)));
  };
  EXPECT_EQ(both(104), std::pair(102.0, 102.0));
  EXPECT_EQ(both(80), std::pair(100.0, 80.0)) << "a GPU that is throttled";
  EXPECT_EQ(both(104, "N"), std::pair(100.0, 104.0)) << "another model";
}

TEST(ScoreCache, ACpuSlotIsItsHosts) {
  EXPECT_THAT(measured_scores({measured("cpu", 7)}, two_gpus()), ElementsAre(Pair("n0:cpu", 7)));
  Inventory other = two_gpus();
  other.hosts[0].name = "n1";
  EXPECT_THAT(measured_scores({measured("cpu", 7)}, other), IsEmpty());
}

}  // namespace
}  // namespace muster
