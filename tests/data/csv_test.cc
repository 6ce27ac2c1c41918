#include "muster/data/readers/csv.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Csv : public ::testing::Test {
 protected:
  std::string put(const std::string& text) {
    test::put_file(folder_ / "a.csv", text);
    return folder_ / "a.csv";
  }
  at::Tensor features(const std::string& text, const CsvOptions& options = {}) {
    return read_csv(put(text), options);
  }
  std::string refusal(const std::string& text, const CsvOptions& options = {}) {
    return message_of([&] { read_csv_dataset(put(text), options); });
  }
  test::TempFolder folder_;
};

TEST_F(Csv, ReadsNumbersWithAndWithoutHeader) {
  const auto expected = torch::tensor({{1.0F, -2.5F}, {300.0F, 0.25F}});
  EXPECT_TRUE(torch::equal(features("1,-2.5\n3e2,.25\n"), expected));
  EXPECT_TRUE(torch::equal(features("a,b\r\n1,-2.5\r\n3e2,.25"), expected));
  EXPECT_TRUE(torch::equal(features("1;-2.5\n300; 0.25 \n", {.format = {.separator = ';'}}), expected));
  EXPECT_TRUE(
      torch::equal(features("2000,2001\n1,-2.5\n300,0.25\n", {.format = {.header = true}}), expected));
}

TEST_F(Csv, ReadsGzip) {
  EXPECT_TRUE(torch::equal(features(test::gzip("1,2\n")), torch::tensor({{1.0F, 2.0F}})));
}

TEST_F(Csv, ChoosesColumnsByNameAndNumber) {
  const std::string text = "name,\"height, m\",kind,weight\nann,1.5,2,50\nbob,1.75,0,70\n";
  EXPECT_TRUE(torch::equal(features(text, {.features = {"weight", 1}}),
                           torch::tensor({{50.0F, 1.5F}, {70.0F, 1.75F}})));
  const auto data = read_csv_dataset(put(text), {.features = {"height, m"}, .label = "kind"});
  EXPECT_TRUE(torch::equal(data.features(), torch::tensor({{1.5F}, {1.75F}})));
  EXPECT_TRUE(torch::equal(data.labels(), torch::tensor({2, 0}, torch::kLong)));
}

TEST_F(Csv, TakesTheLastColumnAsTheLabel) {
  const auto data = read_csv_dataset(put("1,2,0\n3,4,1\n"));
  EXPECT_EQ(data.features().sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_TRUE(torch::equal(data.labels(), torch::tensor({0, 1}, torch::kLong)));
  const auto numbers = read_csv_dataset(put("1,0.5\n3,1\n"), {.classes = false});
  EXPECT_TRUE(torch::equal(numbers.labels(), torch::tensor({0.5F, 1.0F})));
}

TEST_F(Csv, TakesAValueForWhatIsMissingWhereAsked) {
  EXPECT_TRUE(
      torch::equal(features("1,,3\n", {.format = {.missing = -1.0}}), torch::tensor({{1.0F, -1.0F, 3.0F}})));
  EXPECT_THAT(refusal("1,,3\n"),
              AllOf(HasSubstr("a.csv' line 1"), HasSubstr("column 1"), HasSubstr("got nothing")));
}

TEST_F(Csv, NamesLineAndColumn) {
  EXPECT_THAT(refusal("a,b\n1,2\n3,x\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("column 1 (b)"), HasSubstr("'x'")));
  EXPECT_THAT(refusal("1,2\n3\n"), AllOf(HasSubstr("expected 2 columns"), HasSubstr("line 2, got 1 column")));
  EXPECT_THAT(refusal("1,2\n\n3,4\n"), HasSubstr("line 2, got 1 column"));
  EXPECT_THAT(refusal("1,nan\n", {.format = {.header = false}}), HasSubstr("'nan'"));
  EXPECT_THAT(refusal("1,1e999\n", {.format = {.header = false}}), HasSubstr("'1e999'"));
  EXPECT_THAT(refusal("1,\"2\n"), HasSubstr("a quote that ends in its line"));
  EXPECT_THAT(refusal("1,\"2\"3\n"), HasSubstr("a separator after a quote"));
  EXPECT_THAT(refusal("1,0.5\n"), AllOf(HasSubstr("whole numbers as classes"), HasSubstr("row 0")));
  EXPECT_THAT(refusal(""), HasSubstr("an empty file"));
  EXPECT_THAT(refusal("a,b\n"), HasSubstr("at least one row"));
}

TEST_F(Csv, NamesTheColumnsThereAre) {
  EXPECT_THAT(refusal("a,b\n1,2\n", {.label = "c"}), AllOf(HasSubstr("columns a, b"), HasSubstr("got 'c'")));
  EXPECT_THAT(refusal("1,2\n", {.label = "c"}), HasSubstr("no header"));
  EXPECT_THAT(refusal("1,2\n", {.label = 2}), HasSubstr("from 0 to 1"));
  EXPECT_THAT(refusal("1,2\n", {.max_bytes = 3}), HasSubstr("at most"));
}

}  // namespace
}  // namespace muster
