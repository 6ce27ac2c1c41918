#include "muster/train/metrics_writer.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>

#include "muster/base/error.h"

namespace muster::testing {
namespace {

TEST(Metrics, OneJsonObjectALine) {
  std::string folder = ::testing::TempDir() + "muster-metrics-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  MetricsWriter writer(folder + "/metrics.jsonl");
  writer.write({{"epoch", 1}, {"loss", 0.5}});
  writer.write({{"epoch", 2}, {"loss", std::nan("")}});
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
            "{\"epoch\":1,\"loss\":0.5}\n{\"epoch\":2,\"loss\":null}\n");
}

TEST(Metrics, ARunThatGoesOnHasEachStepOnce) {
  std::string folder = ::testing::TempDir() + "muster-metrics-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/metrics.jsonl";
  const std::string first =
      "{\"step\":10,\"loss\":1}\n{\"note\":\"no step\"}\n{\"step\":20,\"loss\":0.5}\n";
  const std::string later = "{\"step\":30,\"loss\":0.4}\n{\"note\":\"after 30\"}\n";
  write_file(path, first + later + "{\"step\":40,\"lo");  // it was killed
  MetricsWriter writer(path);
  EXPECT_EQ(writer.continue_after(20), 3);
  EXPECT_EQ(writer.continue_after(20), 0);
  writer.write({{"step", 30}});
  EXPECT_EQ(read_file(path), first + "{\"step\":30}\n");
  EXPECT_EQ(read_file(path + ".replaced"), later + "{\"step\":40,\"lo\n");
  EXPECT_EQ(writer.continue_after(0), 4) << "from the beginning, in the folder of an earlier run";
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(MetricsWriter("").continue_after(0), 0);
}

TEST(Metrics, AResultThatIsNoNumberSaysSo) {
  EXPECT_EQ(
      to_json_line(
          {{"epochs", 3}, {"loss", std::nan("")}, {"a", INFINITY}, {"b", -INFINITY}, {"c", 1e300}}),
      "{\"epochs\":3,\"loss\":\"NaN\",\"a\":\"Infinity\",\"b\":\"-Infinity\",\"c\":1e+300}");
}

TEST(Metrics, ALossThatIsNoNumberIsAnError) {
  EXPECT_NO_THROW(check_loss(-3, 7));
  try {
    check_loss(std::nan(""), 7);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "loss: expected a finite number, got NaN in step 7; lower the learning rate, or look "
              "at the data");
  }
}

TEST(Metrics, AnEmptyPathWritesNothingAndABadOneIsNamed) {
  EXPECT_NO_THROW(MetricsWriter("").write({{"epoch", 1}}));
  EXPECT_THROW(MetricsWriter("/no/such/folder/metrics.jsonl"), Error);
}

}  // namespace
}  // namespace muster::testing
