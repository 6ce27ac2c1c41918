#include "muster/launch/score_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "tests/device/scratch.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

MeasuredScore measured(const std::string& device,
                       double score,
                       const std::string& model = "M",
                       const std::string& driver = "550") {
  return {.device = device,
          .host = "n0",
          .model = device == "cpu" ? "4 of 8 cores" : model,
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

TEST(ScoreCache, ComesBackAsItWasAdded) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/deep/scores.json";
  EXPECT_THAT(read_score_cache(path), IsEmpty()) << "no file yet";
  const std::vector<MeasuredScore> scores = {measured(test_uuid(0, 0), 1234.5), measured("cpu", 3)};
  for (const MeasuredScore& score : scores)
    add_to_score_cache(path, score);
  EXPECT_EQ(read_score_cache(path), scores);
}

TEST(ScoreCache, ANewScoreTakesTheOldOnesPlace) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/scores.json";
  MeasuredScore half = measured(test_uuid(0, 0), 9);
  half.dtype = "bfloat16";
  MeasuredScore elsewhere = measured("cpu", 5);
  elsewhere.host = "n1";
  for (const MeasuredScore& score : {measured(test_uuid(0, 0), 1),
                                     half,
                                     measured("cpu", 3),
                                     elsewhere,
                                     measured(test_uuid(0, 0), 2)}) {
    add_to_score_cache(path, score);
  }
  EXPECT_EQ(read_score_cache(path),
            (std::vector<MeasuredScore>{
                half, measured("cpu", 3), elsewhere, measured(test_uuid(0, 0), 2)}));
}

TEST(ScoreCache, DamageIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/scores.json";
  add_to_score_cache(path, measured("cpu", 3));
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
  EXPECT_THAT(error_with("3.0", "-3.0"),
              HasSubstr("expected a number above 0 at devices[0].score, got -3"));
  EXPECT_THAT(error_with("muster.scores/1", "muster.scores/9"), HasSubstr("muster.scores/9"));
  EXPECT_THAT(error_with("{", "["), HasSubstr(path));
}

TEST(ScoreCache, GoesByUuidAndDriver) {
  const std::vector<MeasuredScore> scores = {measured(test_uuid(0, 0), 100)};
  EXPECT_THAT(measured_scores(scores, two_gpus()), ElementsAre(Pair(test_uuid(0, 0), 100)));
  EXPECT_THAT(measured_scores(scores, two_gpus("560")), IsEmpty())
      << "another driver, another speed";
  EXPECT_FALSE(cover_all(measured_scores(scores, two_gpus()), two_gpus(), false));
}

TEST(ScoreCache, NoiseIsNoDifference) {
  const auto both = [](double second, const std::string& model = "M") {
    const Scores scores = measured_scores(
        {measured(test_uuid(0, 0), 100), measured(test_uuid(0, 1), second, model)}, two_gpus());
    EXPECT_TRUE(cover_all(scores, two_gpus(), false));
    return std::pair(scores.at(test_uuid(0, 0)), scores.at(test_uuid(0, 1)));
  };
  EXPECT_EQ(both(104), std::pair(102.0, 102.0));
  EXPECT_EQ(both(80), std::pair(100.0, 80.0)) << "a GPU that is throttled";
  EXPECT_EQ(both(104, "N"), std::pair(100.0, 104.0)) << "another model";
}

TEST(ScoreCache, ACpuSlotIsItsHostsAndOfOneSize) {
  const std::vector<MeasuredScore> cpu = {measured("cpu", 7)};
  EXPECT_THAT(measured_scores(cpu, two_gpus()), ElementsAre(Pair("n0:cpu", 7)));
  EXPECT_TRUE(cover_all(measured_scores(cpu, {.source = "test", .hosts = {gpu_host(0, 0)}}),
                        {.source = "test", .hosts = {gpu_host(0, 0)}},
                        true));
  Inventory other = two_gpus();
  other.hosts[0].name = "n1";
  EXPECT_THAT(measured_scores(cpu, other), IsEmpty());
  Inventory smaller = two_gpus();
  smaller.hosts[0].cpu_slots = 8;
  EXPECT_THAT(measured_scores(cpu, smaller), IsEmpty());
}

TEST(ScoreCache, OtherTypesAndOtherHostsCardsAreNotMixedIn) {
  MeasuredScore half = measured(test_uuid(0, 0), 900);
  half.dtype = "bfloat16";
  EXPECT_THAT(measured_scores({half}, two_gpus()), IsEmpty());
  Inventory nameless = two_gpus();
  nameless.hosts[0].gpus[0].uuid.value = "GPU-pci-0000:03:00.0";
  MeasuredScore card = measured("GPU-pci-0000:03:00.0", 5);
  EXPECT_THAT(measured_scores({card}, nameless), testing::SizeIs(1));
  card.host = "n1";
  EXPECT_THAT(measured_scores({card}, nameless), IsEmpty()) << "the same slot of another host";
}

}  // namespace
}  // namespace muster
