#include "muster/data/readers/cifar.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string cifar_record(const std::string& labels, int first_pixel) {
  std::string record = labels;
  for (int i = 0; i < 3072; ++i)
    record += static_cast<char>((first_pixel + i / 1024) % 256);
  return record;
}

TEST(Cifar, ReadsTheTenClasses) {
  const test::TempFolder folder;
  test::put_file(folder / "data_batch_1.bin", cifar_record("\3", 255) + cifar_record("\4", 0));
  test::put_file(folder / "data_batch_2.bin.gz", test::gzip(cifar_record("\11", 10)));
  test::put_file(folder / "test_batch.bin", cifar_record("\1", 51));
  const auto [train, test] = read_cifar10(folder.path());
  EXPECT_EQ(train.features().sizes(), (std::vector<int64_t>{3, 3, 32, 32}));
  EXPECT_TRUE(torch::equal(train.labels(), torch::tensor({3, 4, 9}, torch::kLong)));
  EXPECT_EQ(train.features()[0][0][0][0].item<float>(), 1.0F);
  EXPECT_EQ(test.features()[0][0][31][31].item<float>(), 0.2F);
  const auto bytes = read_cifar10(folder.path(), {.bytes = true});
  EXPECT_EQ(bytes.train.features().scalar_type(), torch::kByte);
  EXPECT_EQ(bytes.train.features()[2][2][5][5].item<int>(), 12);
}

TEST(Cifar, ReadsTheHundredClassesAndTheTwentyKinds) {
  const test::TempFolder folder;
  test::put_file(folder / "train.bin", cifar_record("\5\x42", 0));
  test::put_file(folder / "test.bin", cifar_record("\6\x63", 0));
  EXPECT_EQ(read_cifar100(folder.path()).train.labels().item<int64_t>(), 0x42);
  EXPECT_EQ(read_cifar100(folder.path(), {.coarse_labels = true}).test.labels().item<int64_t>(), 6);
}

TEST(Cifar, NamesFileAndRecord) {
  const test::TempFolder folder;
  const auto refusal = [&] {
    return message_of([&] { read_cifar10(folder.path()); });
  };
  EXPECT_THAT(refusal(), HasSubstr("data_batch_1.bin"));
  test::put_file(folder / "data_batch_1.bin", cifar_record("\3", 255));
  EXPECT_THAT(refusal(), HasSubstr("test_batch.bin"));
  test::put_file(folder / "test_batch.bin", cifar_record("\3", 0) + cifar_record("\x0a", 0));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("test_batch.bin"), HasSubstr("got 10 in record 1")));
  test::put_file(folder / "test_batch.bin", cifar_record("\3", 0).substr(1));
  EXPECT_THAT(refusal(), HasSubstr("records of 3073 bytes"));
  test::put_file(folder / "test_batch.bin", "");
  EXPECT_THAT(refusal(), HasSubstr("records of 3073 bytes"));
}

}  // namespace
}  // namespace muster
