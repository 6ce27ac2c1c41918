#include "muster/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "tests/checkpoint/read_safetensors.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::HasSubstr;

const std::map<std::string, c10::ScalarType> kDtypes = {
    {"bool", torch::kBool},
    {"u8", torch::kUInt8},
    {"i8", torch::kInt8},
    {"i16", torch::kInt16},
    {"u16", torch::kUInt16},
    {"i32", torch::kInt32},
    {"u32", torch::kUInt32},
    {"i64", torch::kInt64},
    {"u64", torch::kUInt64},
    {"f16", torch::kHalf},
    {"bf16", torch::kBFloat16},
    {"f32", torch::kFloat32},
    {"f64", torch::kFloat64},
    {"f8_e4m3", torch::kFloat8_e4m3fn},
    {"f8_e5m2", torch::kFloat8_e5m2},
};

torch::Tensor zeros_and_ones() {
  return torch::tensor({0, 1, 1, 1, 0, 1}).view({2, 3});
}

NamedTensors one_of_each() {
  NamedTensors tensors;
  for (const auto& [name, dtype] : kDtypes)
    tensors[name] = zeros_and_ones().to(dtype);
  tensors["scalar"] = torch::scalar_tensor(7, torch::kInt64);
  tensors["empty"] = torch::zeros({0, 5});
  return tensors;
}

void expect_one_of_each(const NamedTensors& tensors) {
  EXPECT_EQ(tensors.size(), kDtypes.size() + 2);
  for (const auto& [name, dtype] : kDtypes) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_EQ(tensors.at(name).scalar_type(), dtype) << name;
    EXPECT_TRUE(torch::equal(tensors.at(name).to(torch::kInt64), zeros_and_ones())) << name;
  }
  EXPECT_EQ(tensors.at("scalar").dim(), 0);
  EXPECT_EQ(tensors.at("scalar").item<int64_t>(), 7);
  EXPECT_EQ(tensors.at("empty").sizes(), (std::vector<int64_t>{0, 5}));
}

class Safetensors : public ::testing::Test {
 protected:
  test::TempFolder folder_;
};

TEST_F(Safetensors, RoundTripOfEveryDtype) {
  const auto record = write_safetensors(folder_.path(), "file", one_of_each(), {{"note", "ü"}});
  EXPECT_EQ(record.bytes, std::filesystem::file_size(folder_ / "file"));
  EXPECT_EQ(record.sha256, sha256_of_file(folder_ / "file"));
  const auto content = read_safetensors(folder_ / "file");
  expect_one_of_each(content.tensors);
  EXPECT_EQ(content.metadata.at("note"), "ü");
  const auto head = make_safetensors_head(one_of_each(), {{"note", "ü"}});
  EXPECT_EQ(8 + head.json.size() + head.data_bytes, record.bytes);
}

TEST_F(Safetensors, TensorsAreAligned) {
  write_safetensors(folder_.path(), "file", one_of_each());
  const auto head = SafetensorsFile(folder_ / "file").head();
  EXPECT_EQ((8 + head.json.size()) % 8, 0U);
  for (const auto& [name, entry] :
       parse_safetensors_header(head.json, head.data_bytes, "x").tensors)
    EXPECT_EQ(entry.begin % safetensors_element_size(entry.dtype), 0U) << name;
}

TEST_F(Safetensors, StridesAndSharedMemoryAreWrittenAsValues) {
  const auto base = torch::arange(12, torch::kFloat32).view({3, 4});
  write_safetensors(
      folder_.path(), "file", {{"t", base.t()}, {"column", base.select(1, 2)}, {"base", base}});
  const auto tensors = read_safetensors(folder_ / "file").tensors;
  EXPECT_TRUE(torch::equal(tensors.at("t"), base.t()));
  EXPECT_TRUE(torch::equal(tensors.at("column"), base.select(1, 2)));
}

TEST_F(Safetensors, SpecialValuesKeepTheirBits) {
  const auto bits = torch::tensor({0x7fc01234, 0x7f800000, -2147483647 - 1, 1}, torch::kInt32);
  write_safetensors(folder_.path(), "file", {{"x", bits.view(torch::kFloat32)}});
  EXPECT_TRUE(
      torch::equal(read_safetensors(folder_ / "file").tensors.at("x").view(torch::kInt32), bits));
}

TEST_F(Safetensors, PythonReadsOurs) {
  write_safetensors(folder_.path(), "file", one_of_each(), {{"format", "pt"}, {"note", "ü"}});
  const auto output =
      test::run_python("tests/checkpoint/python_safetensors.py", "read " + folder_ / "file");
  if (!output)
    GTEST_SKIP() << "no Python with safetensors in .deps";
  const auto seen = nlohmann::json::parse(*output);
  EXPECT_EQ(seen["metadata"]["note"], "ü");
  EXPECT_EQ(seen["tensors"].size(), kDtypes.size() + 2);
  EXPECT_EQ(seen["tensors"]["bf16"]["dtype"], "torch.bfloat16");
  EXPECT_EQ(seen["tensors"]["empty"]["shape"], (std::vector<int64_t>{0, 5}));
  for (const auto& [name, dtype] : kDtypes)
    EXPECT_EQ(seen["tensors"][name]["values"], (std::vector<double>{0, 1, 1, 1, 0, 1})) << name;
}

TEST_F(Safetensors, WeReadPythons) {
  if (!test::run_python("tests/checkpoint/python_safetensors.py", "write " + folder_ / "file"))
    GTEST_SKIP() << "no Python with safetensors in .deps";
  const auto content = read_safetensors(folder_ / "file");
  expect_one_of_each(content.tensors);
  EXPECT_EQ(content.metadata.at("note"), "from Python, ü");
}

TEST_F(Safetensors, RefusesWhatItCannotWrite) {
  const auto write = [&](const torch::Tensor& tensor) {
    return message_of([&] { write_safetensors(folder_.path(), "file", {{"the.name", tensor}}); });
  };
  EXPECT_THAT(write(torch::Tensor()), HasSubstr("'the.name', got an undefined one"));
  EXPECT_THAT(write(torch::eye(3).to_sparse()), HasSubstr("'the.name'"));
  EXPECT_THAT(write(torch::zeros({2}, torch::kComplexDouble)), HasSubstr("ComplexDouble"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "file"));
  test::put_file(folder_ / "file", "here first");
  EXPECT_THAT(write(torch::zeros({2})), HasSubstr("File exists"));
  EXPECT_EQ(test::get_file(folder_ / "file"), "here first");
}

TEST_F(Safetensors, RefusesEveryTruncationAndAnyTail) {
  write_safetensors(
      folder_.path(), "file", {{"a", torch::ones({3})}, {"b", torch::zeros({2}, torch::kInt64)}});
  const auto whole = test::get_file(folder_ / "file");
  for (size_t size = 0; size < whole.size(); ++size) {
    test::put_file(folder_ / "cut", whole.substr(0, size));
    EXPECT_THROW(read_safetensors(folder_ / "cut"), Error) << size;
  }
  test::put_file(folder_ / "cut", whole + '\0');
  EXPECT_THROW(read_safetensors(folder_ / "cut"), Error);
}

TEST_F(Safetensors, RefusesAHeadBeyondTheFileOrTheLimit) {
  const auto refusal = [&](const std::string& bytes) {
    test::put_file(folder_ / "file", bytes);
    return message_of([&] { read_safetensors(folder_ / "file"); });
  };
  EXPECT_THAT(refusal(std::string(8, '\xff') + "{}"),
              HasSubstr("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("a header of 3 bytes"));
  EXPECT_THAT(refusal(""), HasSubstr("an empty file"));
  // 100 000 001 bytes, all there.
  test::put_file(folder_ / "file", std::string("\x01\xe1\xf5\x05\0\0\0\0{", 9));
  std::filesystem::resize_file(folder_ / "file", 200'000'000);
  EXPECT_THAT(message_of([&] { read_safetensors(folder_ / "file"); }),
              HasSubstr("a header of 100000001 bytes"));
}

TEST_F(Safetensors, RefusesABoolThatIsNone) {
  write_safetensors(folder_.path(), "file", {{"flag", torch::ones({2}, torch::kBool)}});
  auto bytes = test::get_file(folder_ / "file");
  bytes.back() = 2;
  test::put_file(folder_ / "file", bytes);
  EXPECT_THAT(message_of([&] { read_safetensors(folder_ / "file"); }), HasSubstr("'flag'"));
}

TEST_F(Safetensors, RefusesWhatIsNoFile) {
  EXPECT_THAT(message_of([&] { read_safetensors(folder_ / "none"); }), HasSubstr("No such file"));
  EXPECT_THROW(read_safetensors(folder_.path()), Error);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_safetensors(folder_ / "pipe"), Error);
}

}  // namespace
}  // namespace muster
