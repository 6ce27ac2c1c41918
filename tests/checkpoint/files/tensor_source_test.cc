#include "muster/checkpoint/files/tensor_source.h"

#include <gmock/gmock.h>

#include <cstring>

#include "muster/base/error.h"
#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A file with one tensor "x" and what its metadata says of pieces.
void put_piece(const std::string& path,
               const std::vector<float>& values,
               const std::string& records) {
  SafetensorsHeader header;
  const std::string data = bytes_of(values);
  header.tensors["x"] = {"F32", {static_cast<int64_t>(values.size())}, 0, data.size()};
  if (!records.empty())
    header.metadata[kPiecesKey] = records;
  const std::string json = format_safetensors_header(header);
  const uint64_t size = json.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + json + data);
}

std::string piece_of_x(const std::vector<int64_t>& shape, const Elements& elements) {
  return format_piece_records({{"x", {.shape = shape, .elements = elements}}});
}

// [2, 4] with the numbers 0 to 7, in two files: columns 0 to 2, and column 3.
struct TwoFiles {
  TwoFiles() {
    put_piece(
        folder / "a", {0, 1, 2, 4, 5, 6}, piece_of_x({2, 4}, slice_elements({2, 4}, 1, 0, 3)));
    put_piece(folder / "b", {3, 7}, piece_of_x({2, 4}, slice_elements({2, 4}, 1, 3, 1)));
  }
  test::TempFolder folder;
};

std::vector<float> read_floats(const TensorSource& source, const Elements& elements) {
  std::vector<float> values(static_cast<size_t>(element_count(elements)));
  source.read("x", elements, values.data());
  return values;
}

std::string problem_of_file(const std::vector<float>& values, const std::string& records) {
  const test::TempFolder folder;
  put_piece(folder / "a", values, records);
  return test::message_of([&] { TensorSource({folder / "a"}); });
}

TEST(TensorSource, AnyElementsOfATensorInPieces) {
  const TwoFiles files;
  const TensorSource source({files.folder / "a", files.folder / "b"});
  EXPECT_EQ(to_string(source.tensors().at("x").kind), "F32[2, 4]");
  EXPECT_TRUE(source.incomplete().empty());
  EXPECT_THAT(read_floats(source, all_elements({2, 4})), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(read_floats(source, {{.begin = 2, .length = 3}}), ElementsAre(2, 3, 4));
  EXPECT_THAT(read_floats(source, slice_elements({2, 4}, 1, 2, 2)), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(read_floats(source, {{.begin = 7, .length = 1}, {.begin = 0, .length = 1}}),
              ElementsAre(7, 0));
}

TEST(TensorSource, AHoleIsNamed) {
  const TwoFiles files;
  const TensorSource source({files.folder / "a"});
  EXPECT_THAT(source.incomplete(), ElementsAre("x"));
  EXPECT_THAT(read_floats(source, {{.begin = 0, .length = 3}}), ElementsAre(0, 1, 2));
  EXPECT_THAT(test::message_of([&] { read_floats(source, all_elements({2, 4})); }),
              HasSubstr("got all but 2 of these elements; a file of the checkpoint is missing"));
  EXPECT_THAT(test::message_of([&] { source.read("y", {}, nullptr); }),
              HasSubstr("none of that name"));
}

TEST(TensorSource, PiecesOfHostileFilesAreRefused) {
  const TwoFiles files;
  put_piece(files.folder / "c", {3, 7}, piece_of_x({2, 4}, slice_elements({2, 4}, 1, 0, 1)));
  EXPECT_THAT(test::message_of([&] { TensorSource({files.folder / "a", files.folder / "c"}); }),
              HasSubstr("elements that another file has for 'x'"));
  put_piece(files.folder / "d", {3, 7}, piece_of_x({4, 2}, slice_elements({4, 2}, 0, 3, 1)));
  EXPECT_THAT(test::message_of([&] { TensorSource({files.folder / "a", files.folder / "d"}); }),
              HasSubstr("F32[4, 2] beside F32[2, 4]"));

  EXPECT_THAT(problem_of_file({1, 2}, piece_of_x({2}, {{.begin = 1, .length = 2}})),
              HasSubstr("element 3 of 2"));
  EXPECT_THAT(problem_of_file({1, 2}, piece_of_x({9}, {{.begin = 1, .length = 3}})),
              HasSubstr("2 elements instead of 3"));
  EXPECT_THAT(problem_of_file({1}, R"({"y":{"shape":[1],"runs":[[0,1,0,1]]}})"),
              HasSubstr("no tensor for 'y'"));
  for (const char* wrong : {"",
                            "[]",
                            "{\"x\":1}",
                            R"({"x":{"shape":[1]}})",
                            R"({"x":{"shape":[1],"runs":[[0,1,0]]}})",
                            R"({"x":{"shape":[-1],"runs":[[0,1,0,1]]}})",
                            R"({"x":{"shape":[1.5],"runs":[[0,1,0,1]]}})",
                            R"({"x":{"shape":[1],"runs":[[0,1,0,18446744073709551615]]}})"}) {
    const std::string text = *wrong == '\0' ? std::string(1 << 16, '[') : wrong;
    EXPECT_THAT(problem_of_file({1}, text), HasSubstr("expected pieces of whole tensors")) << wrong;
  }
  const auto huge = "9223372036854775807";
  EXPECT_NE(problem_of_file({1},
                            std::string(R"({"x":{"shape":[)") + huge + "," + huge +
                                R"(],"runs":[[0,1,)" + huge + "," + huge + "]]}}"),
            "");
}

}  // namespace
}  // namespace muster
