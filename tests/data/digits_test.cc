#include "muster/data/digits.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/data/gzip.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kDigits = MUSTER_SOURCE_DIR "/data/digits.csv.gz";

std::string line(int pixel, int label) {
  std::string text;
  for (int i = 0; i < 64; ++i)
    text += std::to_string(pixel) + ",";
  return text + std::to_string(label) + "\n";
}

std::string refusal_of(const std::string& content) {
  const test::TempFolder folder;
  test::put_file(folder / "digits.csv", content);
  return message_of([&] { read_digits(folder / "digits.csv"); });
}

TEST(Digits, ReadsTheRepositorysFile) {
  const auto [train, test] = read_digits(kDigits);
  EXPECT_EQ(train.size(), 1438);
  EXPECT_EQ(test.size(), 359);
  EXPECT_EQ(train.features().sizes(), (std::vector<int64_t>{1438, 1, 8, 8}));
  EXPECT_EQ(train.features().scalar_type(), torch::kFloat32);
  EXPECT_EQ(train.labels().scalar_type(), torch::kInt64);
  EXPECT_EQ(train.features().min().item<float>(), 0.0F);
  EXPECT_EQ(train.features().max().item<float>(), 1.0F);
  // The file's first row, and its fifth, which is the first of the test set.
  EXPECT_EQ(train.labels()[0].item<int64_t>(), 0);
  EXPECT_EQ(train.features()[0][0][0][2].item<float>(), 5.0F / 16);
  EXPECT_EQ(test.labels()[0].item<int64_t>(), 4);
  // Every digit is in both parts.
  EXPECT_EQ(std::get<0>(at::_unique(train.labels())).numel(), 10);
  EXPECT_EQ(std::get<0>(at::_unique(test.labels())).numel(), 10);
}

TEST(Digits, SplitsByRowNumber) {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 10; ++i)
    text += line(i, i);
  test::put_file(folder / "d", text.substr(0, text.size() - 1));  // no last newline
  const auto [train, test] = read_digits(folder / "d");
  EXPECT_TRUE(torch::equal(train.labels(), torch::tensor({0, 1, 2, 3, 5, 6, 7, 8})));
  EXPECT_TRUE(torch::equal(test.labels(), torch::tensor({4, 9})));
}

TEST(Digits, NamesFileAndLineOfWhatIsWrong) {
  const std::string good = line(3, 1) + line(4, 2);
  EXPECT_THAT(refusal_of(good + "1,2,3\n"),
              AllOf(HasSubstr("digits.csv' line 3"), HasSubstr("got 3 columns")));
  EXPECT_THAT(refusal_of(good + line(17, 0)),
              AllOf(HasSubstr("line 3"), HasSubstr("from 0 to 16 in column 1"), HasSubstr("'17'")));
  EXPECT_THAT(refusal_of(good + line(-1, 0)), HasSubstr("'-1'"));
  EXPECT_THAT(refusal_of(good + line(0, 10)),
              AllOf(HasSubstr("from 0 to 9 in column 65"), HasSubstr("got '10'")));
  EXPECT_THAT(refusal_of(good + "\n" + good), AllOf(HasSubstr("line 3"), HasSubstr("got ''")));
  auto word = line(0, 1);
  word.replace(2, 1, "x");
  EXPECT_THAT(refusal_of(good + word), AllOf(HasSubstr("column 2 "), HasSubstr("got 'x'")));
  EXPECT_THAT(refusal_of(""), HasSubstr("at least 5 lines"));
  EXPECT_THAT(refusal_of(good), HasSubstr("at least 5 lines"));
}

TEST(Digits, NamesAFileOfTheWrongKind) {
  EXPECT_THAT(refusal_of("<!DOCTYPE html>\n"),
              AllOf(HasSubstr("line 1"), HasSubstr("<!DOCTYPE html>")));
  EXPECT_THAT(refusal_of(std::string("\x7f"
                                     "ELF\x02\0\0",
                                     7)),
              HasSubstr("'\\x7fELF\\x02\\x00\\x00'"));
  EXPECT_THAT(message_of([] { read_digits("/nowhere/digits.csv.gz"); }),
              HasSubstr("/nowhere/digits.csv.gz"));
}

TEST(Digits, RefusesATruncatedFile) {
  const auto whole = test::get_file(kDigits);
  EXPECT_THAT(refusal_of(whole.substr(0, whole.size() / 2)), HasSubstr("cut short"));
  EXPECT_THAT(refusal_of(whole.substr(0, whole.size() - 1)), HasSubstr("cut short"));
  // Unpacked and cut within a line.
  const auto text = gunzip(whole, 1 << 24, "digits");
  EXPECT_THAT(refusal_of(text.substr(0, text.size() - 30)), HasSubstr("line 1797"));
}

}  // namespace
}  // namespace muster
