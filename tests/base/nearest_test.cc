#include "muster/base/nearest.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

const std::vector<std::string_view> kKeys = {
    "retries", "time_limit", "env", "need-gpus", "need-cpus"};

TEST(Nearest, ASlipOfTheHand) {
  EXPECT_EQ(nearest_name("timelimit", kKeys), "time_limit");
  EXPECT_EQ(nearest_name("retreis", kKeys), "retries");
  EXPECT_EQ(nearest_name("evn", kKeys), "env");
  EXPECT_EQ(nearest_name("venx", kKeys), "");
  EXPECT_EQ(nearest_name("something", kKeys), "");
  EXPECT_EQ(did_you_mean("need-gpu", kKeys), "; did you mean 'need-gpus'?");
}

TEST(Nearest, AnotherEndingOfTheOnlyNameThatBeginsSo) {
  EXPECT_EQ(nearest_name("retry", kKeys), "retries");
  EXPECT_EQ(nearest_name("time", kKeys), "time_limit");
  EXPECT_EQ(nearest_name("need", kKeys), "") << "which of the two?";
  EXPECT_EQ(nearest_name("ti", kKeys), "");
}

}  // namespace
}  // namespace muster
