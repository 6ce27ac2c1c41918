#include "muster/data/mnist.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string number(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

std::string images(uint32_t count, uint32_t side = 28) {
  std::string bytes = number(0x803) + number(count) + number(side) + number(side);
  for (uint32_t i = 0; i < count * side * side; ++i)
    bytes += static_cast<char>(i % 256);
  return bytes;
}

std::string labels(uint32_t count) {
  std::string bytes = number(0x801) + number(count);
  for (uint32_t i = 0; i < count; ++i)
    bytes += static_cast<char>(i % 10);
  return bytes;
}

class Mnist : public ::testing::Test {
 protected:
  void SetUp() override {
    put("train-images-idx3-ubyte", images(12));
    put("train-labels-idx1-ubyte", labels(12));
    put("t10k-images-idx3-ubyte", images(5));
    put("t10k-labels-idx1-ubyte", labels(5));
  }
  void put(const std::string& name, const std::string& bytes) {
    test::put_file(folder_ / name, bytes);
  }
  void remove(const std::string& name) { std::filesystem::remove(folder_ / name); }
  std::string refusal() {
    return message_of([&] { read_mnist(folder_.path()); });
  }

  test::TempFolder folder_;
};

TEST_F(Mnist, ReadsImagesAndLabels) {
  const auto [train, test] = read_mnist(folder_.path());
  EXPECT_EQ(train.features().sizes(), (std::vector<int64_t>{12, 1, 28, 28}));
  EXPECT_EQ(test.size(), 5);
  EXPECT_EQ(train.features().scalar_type(), torch::kFloat32);
  EXPECT_EQ(train.features()[0][0][9][3].item<float>(), 1.0F);  // byte 255
  EXPECT_EQ(train.features()[0][0][1][23].item<float>(), 0.2F);
  EXPECT_EQ(train.labels()[11].item<int64_t>(), 1);
}

TEST_F(Mnist, ReadsGzipAndTheOtherSpelling) {
  remove("train-images-idx3-ubyte");
  put("train-images.idx3-ubyte", images(12));
  remove("train-labels-idx1-ubyte");
  put("train-labels-idx1-ubyte.gz", test::gzip(labels(12)));
  remove("t10k-images-idx3-ubyte");
  put("t10k-images.idx3-ubyte.gz", test::gzip(images(5)));
  EXPECT_EQ(read_mnist(folder_.path()).train.size(), 12);
}

TEST_F(Mnist, NamesAMissingFolderOrFile) {
  EXPECT_THAT(message_of([] { read_mnist("/nowhere"); }), HasSubstr("/nowhere"));
  remove("t10k-labels-idx1-ubyte");
  EXPECT_THAT(refusal(), HasSubstr("t10k-labels-idx1-ubyte"));
}

TEST_F(Mnist, RefusesAnotherKindOfFile) {
  put("train-images-idx3-ubyte", "<html>");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("train-images"), HasSubstr("'<htm'")));
  put("train-images-idx3-ubyte", labels(12));
  EXPECT_THAT(refusal(), HasSubstr("3 dimensions"));
  put("train-images-idx3-ubyte", "");
  EXPECT_THAT(refusal(), HasSubstr("3 dimensions"));
}

TEST_F(Mnist, RefusesWhatIsCutOrTooLong) {
  const auto whole = images(12);
  put("train-images-idx3-ubyte", whole.substr(0, 10));
  EXPECT_THAT(refusal(), HasSubstr("cut short"));
  put("train-images-idx3-ubyte", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("9408 bytes of data"), HasSubstr("got 9407 (cut short)")));
  put("train-images-idx3-ubyte", whole + "x");
  EXPECT_THAT(refusal(), HasSubstr("bytes after the end"));
  const auto packed = test::gzip(whole);
  put("train-images-idx3-ubyte", packed.substr(0, packed.size() - 9));
  EXPECT_THAT(refusal(), HasSubstr("cut short"));
}

TEST_F(Mnist, RefusesImpossibleSizes) {
  put("train-images-idx3-ubyte", number(0x803) + number(0xffffffff) + number(4096) + number(4096));
  EXPECT_THAT(refusal(), HasSubstr("cut short"));
  put("train-images-idx3-ubyte",
      number(0x803) + number(1) + number(0xffffffff) + number(0xffffffff));
  EXPECT_THAT(refusal(), HasSubstr("4294967295"));
  put("train-images-idx3-ubyte", number(0x803) + number(1) + number(0) + number(28));
  EXPECT_THAT(refusal(), HasSubstr("rows and columns"));
  put("train-images-idx3-ubyte", images(0));
  EXPECT_THAT(refusal(), HasSubstr("at least one sample"));
}

TEST_F(Mnist, RefusesPartsThatDoNotFit) {
  put("train-labels-idx1-ubyte", labels(11));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("12 labels"), HasSubstr("got 11")));
  put("train-labels-idx1-ubyte", number(0x801) + number(12) + std::string(11, '\1') + '\x0b');
  EXPECT_THAT(refusal(), HasSubstr("got 11 at item 11"));
  put("train-labels-idx1-ubyte", labels(12));
  put("t10k-images-idx3-ubyte", images(5, 8));
  EXPECT_THAT(refusal(), HasSubstr("8x8 to test"));
}

}  // namespace
}  // namespace muster
