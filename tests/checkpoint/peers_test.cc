#include "muster/checkpoint/peers.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "tests/checkpoint/thread_peers.h"

namespace muster {
namespace {

using test::on_ranks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Peers, AloneNeedsNobody) {
  const Peers alone;
  int calls = 0;
  alone.on_rank0([&] { ++calls; });
  alone.together([&] { ++calls; });
  std::string bytes = "kept";
  alone.share(bytes);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(bytes, "kept");
  EXPECT_THROW(alone.together([] { throw Error(ErrorCode::io, "no"); }), Error);
}

TEST(Peers, ShareBytesAndEveryDtype) {
  const auto thrown = on_ranks(3, [](const Peers& peers) {
    std::string bytes = peers.rank() == 0 ? std::string("a\0b", 3) : "other";
    peers.share(bytes);
    TORCH_CHECK(bytes == std::string("a\0b", 3));
    for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kInt16, torch::kBool}) {
      auto tensor = peers.rank() == 0 ? torch::ones({2, 3}, dtype) : torch::zeros({2, 3}, dtype);
      peers.share(tensor);
      TORCH_CHECK((tensor == 1).all().item<bool>());
    }
    peers.share(torch::empty({0}));
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST(Peers, EveryRankGetsRankZerosError) {
  const auto thrown = on_ranks(3, [](const Peers& peers) {
    try {
      peers.on_rank0([] { throw Error(ErrorCode::unavailable, "disk full"); });
    } catch (const Error& error) {
      TORCH_CHECK(error.code() == ErrorCode::unavailable);
      throw;
    }
  });
  EXPECT_THAT(thrown, ElementsAre("disk full", "disk full (rank 0)", "disk full (rank 0)"));
  EXPECT_THAT(
      on_ranks(2,
               [](const Peers& peers) { peers.on_rank0([] { throw std::runtime_error("odd"); }); }),
      Each(HasSubstr("odd")));
  EXPECT_EQ(on_ranks(2,
                     [](const Peers& peers) {
                       peers.on_rank0([] { TORCH_CHECK(false, "shapes differ"); });
                     })[1],
            "shapes differ (rank 0)")
      << "without LibTorch's stack";
}

TEST(Peers, OneRanksFailureIsEverybodys) {
  const auto thrown = on_ranks(3, [](const Peers& peers) {
    peers.together([&] {
      if (peers.rank() == 1)
        throw Error(ErrorCode::invalid_argument, "model differs");
    });
  });
  EXPECT_THAT(thrown,
              ElementsAre("model differs (rank 1)", "model differs", "model differs (rank 1)"));
}

}  // namespace
}  // namespace muster
