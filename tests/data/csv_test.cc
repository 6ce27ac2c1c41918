#include "muster/data/readers/csv.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include "muster/base/error.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_TRUE(
      torch::equal(features("1;-2.5\n300; 0.25 \n", {.format = {.separator = ';'}}), expected));
  EXPECT_TRUE(torch::equal(features("2000,2001\n1,-2.5\n300,0.25\n", {.format = {.header = true}}),
                           expected));
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
  EXPECT_TRUE(torch::equal(features("1,,3\n", {.format = {.missing = -1.0}}),
                           torch::tensor({{1.0F, -1.0F, 3.0F}})));
  EXPECT_THAT(refusal("1,,3\n"),
              AllOf(HasSubstr("a.csv' line 1"), HasSubstr("column 1"), HasSubstr("got nothing")));
}

TEST_F(Csv, NamesLineAndColumn) {
  EXPECT_THAT(refusal("a,b\n1,2\n3,x\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("column 1 (b)"), HasSubstr("'x'")));
  EXPECT_THAT(refusal("1,2\n3\n"),
              AllOf(HasSubstr("expected 2 columns"), HasSubstr("line 2, got 1 column")));
  EXPECT_THAT(refusal("1,2\n\n3,4\n"), HasSubstr("line 2, got 1 column"));
  EXPECT_THAT(refusal("1,nan\n", {.format = {.header = false}}), HasSubstr("'nan'"));
  EXPECT_THAT(refusal("1,1e999\n", {.format = {.header = false}}), HasSubstr("'1e999'"));
  EXPECT_THAT(refusal("1,2\n1,\"2\n3,4\n"),
              AllOf(HasSubstr("a quote that ends in '"), HasSubstr("line 2")));
  EXPECT_THAT(refusal("1,\"2\"3\n"), HasSubstr("a separator after a quote"));
  EXPECT_THAT(refusal("1,0.5\n"), AllOf(HasSubstr("whole numbers as classes"), HasSubstr("row 0")));
  EXPECT_THAT(refusal("1,9007199254740993\n"), HasSubstr("as classes, below 2^53"));
  EXPECT_THAT(refusal(""), HasSubstr("an empty file"));
  EXPECT_THAT(refusal("a,b\n"), HasSubstr("at least one row"));
}

TEST_F(Csv, AnotherSeparatorIsNamed) {
  const auto names_it =
      HasSubstr("a ';': if that divides the columns, set .format.separator to it");
  EXPECT_THAT(refusal("a;b;c\n1;2;0\n"), names_it) << "a value that is no number";
  EXPECT_THAT(refusal("a;b\n1,5;0\n"), names_it) << "a row of two columns";
  EXPECT_THAT(refusal("1;2;0\n1;2;0\n", {.label = 2}), names_it) << "no third column";
  EXPECT_THAT(refusal("a;b;c\n1;2;0\n", {.label = "c"}), names_it) << "no column of that name";
  EXPECT_THAT(refusal("a\tb\n1\t0\n"), HasSubstr("a '\\t': if that"));
  EXPECT_THAT(refusal("a,b\n1,0\n", {.format = {.separator = ';'}}), HasSubstr("a ',': if that"));
  EXPECT_THAT(refusal("a\nx\n"), Not(HasSubstr("separator")));
}

TEST_F(Csv, QuotedFieldsMayHaveQuotesAndEndsOfLines) {
  const std::string text =
      "name,\"the \"\"real\"\" height\",note\nann,1.5,\"says \"\"hi\"\",\r\nand goes\"\n"
      "\"bob, jr\",\"1.75\",5\" wide\n";
  EXPECT_TRUE(torch::equal(features(text, {.features = {"the \"real\" height"}}),
                           torch::tensor({{1.5F}, {1.75F}})));
  EXPECT_THAT(refusal(text + "eve,x,\n", {.features = {1}, .label = 1}),
              HasSubstr("line 5, got 'x'"))
      << "a row's line counts those within quotes";
}

TEST_F(Csv, SaysWhereAHeaderIsNotClear) {
  const auto rows = [&](const std::string& text, std::optional<bool> header = {}) {
    return features(text, {.format = {.header = header, .missing = -1.0}, .features = {0}}).size(0);
  };
  EXPECT_EQ(rows("NA,1,2\n3,4,5\n"), 2) << "a missing value is no name";
  EXPECT_EQ(rows("id,2000,2001\n1,2,3\n"), 1) << "a text over a number";
  EXPECT_EQ(rows("2000,2001\n1,2\n"), 2);
  EXPECT_EQ(rows("1\n0\n"), 2);
  EXPECT_EQ(rows(",a,y\n0,5,1\n"), 1) << "an index, and texts over numbers";
  EXPECT_EQ(rows(",name,city\n0,ann,york\n1,bob,rome\n"), 2) << "an index over texts";
  const auto not_clear = HasSubstr("a first line that is clearly a header or none; set .header");
  for (const char* text : {"0,1,2\n5,6,7\n",
                           ",0,1\n0,5,6\n",
                           "1,ann\n2,bob\n",
                           "0\n7\n",
                           ",0\n0,7\n",
                           ",ann\n0,bob\n2,eve\n"}) {
    EXPECT_THAT(message_of([&] { rows(text); }), not_clear) << text;
    EXPECT_EQ(rows(text, true) + 1, rows(text, false)) << text;
  }
  EXPECT_EQ(features("0,1,2\n5,6,7\n", {.features = {"1"}}).item<float>(), 6)
      << "asked for by name";
}

// Of a row whose number is missing, nothing but the class is left to see.
TEST_F(Csv, LosesNoRowToAHeader) {
  const CsvOptions options{.format = {.missing = -1.0}, .class_names = {"setosa", "virginica"}};
  for (const char* missing : {"NA", "nan", "", "\"\""}) {
    const std::string text = std::string(missing) + ",setosa\n1.5,virginica\n";
    EXPECT_THAT(refusal(text, options), HasSubstr("set .header in '")) << text;
    EXPECT_THAT(refusal(text, options), HasSubstr("got texts and missing values")) << text;
    CsvOptions told = options;
    told.format.header = false;
    EXPECT_EQ(read_csv_dataset(put(text), told).size(), 2) << text;
  }
  EXPECT_EQ(read_csv_dataset(put("a,NA,y\n1,2,setosa\n"), options).size(), 1);
}

TEST_F(Csv, TakesWhatPandasTakesForMissing) {
  for (const char* missing : {"", "NA", "nan", "NaN", "null", "None", "<NA>", "#N/A", "\"\""}) {
    const std::string text = std::string("1,") + missing + ",3\n";
    EXPECT_TRUE(torch::equal(features(text, {.format = {.missing = -1.0}}),
                             torch::tensor({{1.0F, -1.0F, 3.0F}})));
    EXPECT_THAT(refusal(text), HasSubstr(".missing gives such fields a value"));
  }
  EXPECT_TRUE(features("1,NA\n", {.format = {.missing = NAN}})[0][1].isnan().item<bool>());
}

TEST_F(Csv, ANumberThatNoFloatHoldsIsRefused) {
  EXPECT_THAT(refusal("1,1e39\n"),
              AllOf(HasSubstr("a number that a float can hold in column 1"), HasSubstr("'1e39'")));
  EXPECT_THAT(refusal("1,-inf\n"), HasSubstr("a number in column 1"));
}

TEST_F(Csv, ClassesMayBeTexts) {
  const std::string text = "width,species\n1,versicolor\n2,setosa\n3,versicolor\n";
  EXPECT_THAT(refusal(text), HasSubstr("'versicolor'"));
  const std::string path = put(text);
  const CsvOptions options{.label = "species",
                           .class_names = csv_classes(path, {.label = "species"})};
  EXPECT_THAT(options.class_names, ::testing::ElementsAre("setosa", "versicolor"));
  EXPECT_TRUE(torch::equal(read_csv_dataset(path, options).labels(), torch::tensor({1, 0, 1})));
  EXPECT_THAT(refusal(text + "4,virginica\n", options),
              AllOf(HasSubstr("one of the 2 classes in column 1 (species)"),
                    HasSubstr("line 5, got 'virginica'")));
  for (const std::string missing : {"", "NA"}) {
    const std::string without = put(text + "4," + missing + "\n");
    EXPECT_EQ(csv_classes(without, {.label = "species"}).size(), 2) << "no class of its own";
    EXPECT_THAT(refusal(text + "4," + missing + "\n", options),
                HasSubstr("(a missing one; if it is a class"));
  }
}

TEST_F(Csv, FillsNoMissingLabels) {
  const std::string text = "a,y\n,0\n3,\n";
  EXPECT_THAT(refusal(text, {.format = {.missing = 0.0}}),
              AllOf(HasSubstr("line 3, got nothing"), HasSubstr(".missing fills no labels")));
  EXPECT_THAT(refusal(text, {.format = {.missing = 0.0}, .classes = false}), HasSubstr("line 3"));
  EXPECT_EQ(read_csv_dataset(put("a,y\n,0\n3,1\n"), {.format = {.missing = 0.0}}).size(), 2);
}

TEST_F(Csv, RefusesAClassThatIsTwiceInTheList) {
  EXPECT_THAT(refusal("a,y\n1,cat\n2,dog\n", {.class_names = {"cat", "cat", "dog"}}),
              HasSubstr("expected each of .class_names once, got 'cat' twice"));
}

TEST_F(Csv, TakesNoIndexForAFeature) {
  for (const std::string text :
       {",a,y\n0,5,1\n1,6,0\n", "\"\",\"a\",\"y\"\n\"1\",5,1\n\"2\",6,0\n"}) {
    EXPECT_THAT(refusal(text), HasSubstr("expected a name for column 0"));
    EXPECT_THAT(refusal(text, {.label = "y"}), HasSubstr("index=False"));
    EXPECT_EQ(read_csv_dataset(put(text), {.features = {"a"}, .label = "y"}).features().size(1), 1);
    EXPECT_EQ(read_csv(put(text), {.features = {0, 1}}).size(1), 2) << "it was asked for";
  }
}

// Tables that Python's csv module has written, with texts of every kind in the columns between.
TEST_F(Csv, ReadsWhatPythonWrites) {
  const auto numbers = test::run_python("tests/data/csv_files.py", "'" + folder_.path() + "'");
  if (!numbers)
    GTEST_SKIP() << "no Python with PyTorch";
  std::istringstream lines(*numbers);
  std::string name;
  int tables = 0;
  for (int64_t rows = 0; lines >> name >> rows; ++tables) {
    const at::Tensor read = read_csv(folder_ / name, {.features = {"x", "y"}});
    ASSERT_EQ(read.size(0), rows) << name;
    for (int64_t row = 0; row < rows; ++row) {
      float x = 0, y = 0;
      lines >> x >> y;
      EXPECT_EQ(read[row][0].item<float>(), x) << name << " row " << row;
      EXPECT_EQ(read[row][1].item<float>(), y) << name << " row " << row;
    }
  }
  EXPECT_EQ(tables, 20);
}

TEST_F(Csv, CountsTheLinesOfTheFirstRow) {
  EXPECT_THAT(refusal("\"a\nb\",5\n1,\"x\n"), HasSubstr("line 3, got one that does not"));
}

TEST_F(Csv, NamesTheColumnsThereAre) {
  EXPECT_THAT(refusal("a,b\n1,2\n", {.label = "c"}),
              AllOf(HasSubstr("columns a, b"), HasSubstr("got 'c'")));
  EXPECT_THAT(refusal("1,2\n", {.format = {.header = false}, .label = "c"}),
              HasSubstr("no header"));
  EXPECT_THAT(refusal("a,b,a\n1,2,3\n", {.label = "a"}), HasSubstr("one column 'a'"));
  EXPECT_THAT(refusal("1,2\n", {.label = 2}), HasSubstr("from 0 to 1"));
  EXPECT_THAT(refusal("1,2\n", {.max_bytes = 3}), HasSubstr("at most"));
}

}  // namespace
}  // namespace muster
