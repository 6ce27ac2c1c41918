#include "muster/data/dataset.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TEST(TensorDataset, HoldsFeaturesAndLabels) {
  const TensorDataset data(torch::zeros({3, 2}), torch::arange(3));
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.features().size(1), 2);
}

TEST(TensorDataset, RefusesWhatDoesNotBelongTogether) {
  EXPECT_THAT(message_of([] { TensorDataset(torch::zeros({3, 2}), torch::arange(4)); }),
              HasSubstr("3 features and 4 labels"));
  EXPECT_THAT(message_of([] { TensorDataset(torch::Tensor(), torch::arange(4)); }),
              HasSubstr("undefined"));
  EXPECT_THAT(message_of([] { TensorDataset(torch::tensor(1.0), torch::tensor(1)); }),
              HasSubstr("scalar"));
}

}  // namespace
}  // namespace muster
