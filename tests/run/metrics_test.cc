#include "muster/run/metrics.h"

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

TEST(Metrics, AnEmptyPathWritesNothingAndABadOneIsNamed) {
  EXPECT_NO_THROW(MetricsWriter("").write({{"epoch", 1}}));
  EXPECT_THROW(MetricsWriter("/no/such/folder/metrics.jsonl"), Error);
}

}  // namespace
}  // namespace muster::testing
