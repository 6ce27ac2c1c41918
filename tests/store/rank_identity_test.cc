#include "muster/store/rank_identity.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

const RankIdentity kRankOne = {.rank = 1,
                               .world_size = 2,
                               .host = "h",
                               .pid = 4711,
                               .pid_namespace = 4026531836,
                               .device = "GPU-0f1e",
                               .pci_address = "0:59:0",
                               .backend = "auto",
                               .libtorch = "2.15.0",
                               .nccl = "2.27.3"};

TEST(RankIdentity, ComesBackAsItWas) {
  EXPECT_EQ(rank_identity_from(to_text(kRankOne), 1), kRankOne);
  EXPECT_EQ(rank_identity_from(R"({"rank":3,"another":[]})", 3).device, "");
}

TEST(RankIdentity, WhatSomebodyElseWroteIsRefused) {
  for (const std::string& text : {std::string(),
                                  std::string("-"),
                                  std::string("[1]"),
                                  to_text(kRankOne),  // another rank's
                                  std::string(R"({"rank":"0"})"),
                                  std::string(R"({"rank":0.5})"),
                                  std::string(R"({"rank":0,"pid":-1})"),
                                  std::string(R"({"rank":0,"pid":1099511627776})"),
                                  std::string(R"({"rank":0,"pid":1e300})"),
                                  std::string(R"({"rank":0,"device":7})"),
                                  std::string(R"({"rank":0,"takes_part":1})"),
                                  "{\"rank\":0,\"x\":" + std::string(100'000, '[')}) {
    try {
      rank_identity_from(text, 0);
      ADD_FAILURE() << text.substr(0, 80);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.message(), HasSubstr("expected the identity of rank 0 in this store"));
      EXPECT_THAT(error.message(), Not(HasSubstr("json.exception")));
    }
  }
}

}  // namespace
}  // namespace muster
