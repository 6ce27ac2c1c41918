#include "muster/data/readers/npy.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/data/loader.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string npy_file(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += static_cast<char>(dictionary.size() & 255);
  bytes += static_cast<char>(dictionary.size() >> 8);
  if (version > 1)
    bytes += std::string(2, '\0');
  return bytes + dictionary + data;
}

std::string npy_header(const std::string& type,
                       const std::string& shape,
                       const std::string& fortran = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape +
         ", }   \n";
}

std::string refusal_of_npy(const std::string& bytes) {
  const test::TempFolder folder;
  test::put_file(folder / "a.npy", bytes);
  return message_of([&] { read_npy(folder / "a.npy"); });
}

TEST(Npy, ReadsWhatNumpyWrites) {
  const test::TempFolder folder;
  const auto written = test::run_python("tests/data/numpy_files.py", folder.path());
  if (!written)
    GTEST_SKIP() << "no Python with numpy";
  std::istringstream lines(*written);
  int files = 0;
  for (std::string name, type, sum; lines >> name >> type >> sum; ++files) {
    const auto tensor = read_npy(folder / name);
    EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{3, 4, 5})) << name;
    EXPECT_EQ(std::string(c10::toString(tensor.scalar_type())), type) << name;
    const auto values = torch::view_as_real(tensor.to(torch::kComplexDouble)).select(-1, 0);
    const auto weights = torch::arange(1, 61, torch::kDouble).view({3, 4, 5});
    EXPECT_EQ(std::to_string(static_cast<int64_t>((values * weights).sum().item<double>())), sum)
        << name;
  }
  EXPECT_EQ(files, 2 * 14 + 2);
}

TEST(Npy, MapsTheFileAndLeavesItAsItIs) {
  const test::TempFolder folder;
  const std::string bytes = npy_file(npy_header("|u1", "(2, 3)"), "abcdef");
  test::put_file(folder / "a.npy", bytes);
  auto tensor = read_npy(folder / "a.npy");
  tensor.zero_();
  EXPECT_EQ(test::get_file(folder / "a.npy"), bytes);
  EXPECT_EQ(read_npy(folder / "a.npy")[1][2].item<int>(), 'f');
}

TEST(Npy, IsADataSet) {
  const test::TempFolder folder;
  test::put_file(folder / "x.npy", npy_file(npy_header("|u1", "(3, 2)"), "abcdef"));
  test::put_file(folder / "y.npy",
                 npy_file(npy_header("<i2", "(3,)"), std::string("\0\0\1\0\2\0", 6)));
  const auto data = read_npy_dataset(folder / "x.npy", folder / "y.npy");
  EXPECT_EQ(data.labels().scalar_type(), torch::kLong);
  DataLoader loader(data, {.batch_size = 2});
  auto batch = loader.begin();
  EXPECT_TRUE(torch::equal(batch->features, torch::tensor({{97, 98}, {99, 100}}, torch::kByte)));
  EXPECT_TRUE(torch::equal(batch->labels, torch::tensor({0, 1}, torch::kLong)));
}

// 2^64 - 1, as a label to ignore, would become -1.
TEST(Npy, LabelsOf64BitsWithoutASignAreClassesOrAnError) {
  const test::TempFolder folder;
  test::put_file(folder / "x.npy", npy_file(npy_header("|u1", "(2, 1)"), "ab"));
  const std::string seven("\7\0\0\0\0\0\0\0", 8);
  test::put_file(folder / "y.npy", npy_file(npy_header("<u8", "(2,)"), seven + seven));
  const auto data = read_npy_dataset(folder / "x.npy", folder / "y.npy");
  EXPECT_TRUE(torch::equal(data.labels(), torch::tensor({7, 7}, torch::kLong)));
  test::put_file(folder / "z.npy",
                 npy_file(npy_header("<u8", "(2,)"), seven + std::string(8, '\xff')));
  try {
    read_npy_dataset(folder / "x.npy", folder / "z.npy");
    FAIL() << "it should throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("z.npy', got 18446744073709551615"));
  }
}

TEST(Npy, ReadsDataThatIsNotAligned) {
  const test::TempFolder folder;
  std::string header = npy_header("<i4", "(2,)");
  while ((10 + header.size()) % 4 != 1)
    header += ' ';
  test::put_file(folder / "a.npy", npy_file(header, std::string("\1\0\0\0\2\0\0\0", 8)));
  EXPECT_TRUE(torch::equal(read_npy(folder / "a.npy"), torch::tensor({1, 2}, torch::kInt)));
}

TEST(Npy, ReadsEmptyArraysAndScalars) {
  const test::TempFolder folder;
  test::put_file(folder / "a.npy", npy_file(npy_header("<f4", "(3, 0, 5)"), ""));
  EXPECT_EQ(read_npy(folder / "a.npy").sizes(), (std::vector<int64_t>{3, 0, 5}));
  test::put_file(folder / "b.npy", npy_file(npy_header("|b1", "()"), "\1", 2));
  EXPECT_TRUE(read_npy(folder / "b.npy").item<bool>());
}

TEST(Npy, RefusesWhatItCannotRead) {
  EXPECT_THAT(refusal_of_npy(""), AllOf(HasSubstr("a.npy"), HasSubstr("expected a .npy file")));
  EXPECT_THAT(refusal_of_npy("PK\3\4"), HasSubstr("'PK\\x03\\x04'"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("|O", "(2,)"), "12")),
              HasSubstr("Python objects"));
  EXPECT_THAT(refusal_of_npy(npy_file(
                  "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234")),
              HasSubstr("records"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header(">f4", "(1,)"), "1234")), HasSubstr("byte order"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<U4", "(1,)"), "1234")), HasSubstr("'<U4'"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<f4", "(1,)"), "123")), HasSubstr("cut short"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<f4", "(1,)"), "12345")),
              HasSubstr("bytes after the end"));
  for (const char* shape :
       {"(4294967296, 4294967296)", "(0, 9223372036854775807, 9223372036854775807)"})
    EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<f4", shape), "")),
                HasSubstr("fits in 63 bits"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<f4", "(-1,)"), "")), HasSubstr("'-1,)"));
  EXPECT_THAT(refusal_of_npy(npy_file("{'shape': (1,)}", "")), HasSubstr("descr"));
  EXPECT_THAT(refusal_of_npy(npy_file("{'evil': (1,)}", "")), HasSubstr("'evil'"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<f4", "(1,)"), "1234", 9)),
              HasSubstr("version 9"));
  EXPECT_THAT(refusal_of_npy(npy_file(npy_header("<f4", "(1,)"), "1234").substr(0, 40)),
              HasSubstr("cut short"));
  EXPECT_THAT(message_of([] { read_npy("/nowhere.npy"); }), HasSubstr("/nowhere.npy"));
  EXPECT_THAT(message_of([] { read_npy("/tmp"); }), HasSubstr("a folder"));
}

}  // namespace
}  // namespace muster
