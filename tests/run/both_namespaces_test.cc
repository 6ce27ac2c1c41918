// A program that uses the namespaces of muster and of LibTorch: what it writes most means one
// thing. Error, Context, Generator, Stream and Reduction are in both, and such a program says
// which.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "muster/muster.h"

namespace {

TEST(BothNamespaces, GiveTheShortNamesOneMeaning) {
  using namespace muster;  // NOLINT(google-build-using-namespace): as in a user's program
  using namespace torch;   // NOLINT(google-build-using-namespace)
  const Tensor a = torch::ones({2, 2});
  const std::vector<Tensor> both{a, a};
  const Tensors list = both;
  const Strings names{"a", "b"};
  const milliseconds limit(5);
  EXPECT_EQ(cat(both).size(0), 4);
  EXPECT_EQ(cat(list, 1).size(1), 4);
  EXPECT_EQ(cat({a, a}).size(0), 4);
  EXPECT_EQ(split(a, 1).size(), 2U);
  EXPECT_EQ(log(a).sum().item<float>(), 0);
  EXPECT_EQ(cat("rank ", 1, " of ", names.size(), " in ", limit.count()), "rank 1 of 2 in 5");
}

}  // namespace
