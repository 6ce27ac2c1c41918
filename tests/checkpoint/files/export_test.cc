#include "muster/checkpoint/files/export.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "muster/base/error.h"
#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using test::message_of;
using test::put_safetensors;
using test::RawTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Export : public ::testing::Test {
 protected:
  void SetUp() override { put_safetensors(folder_ / "in", tensors_); }

  const test::TempFolder folder_;
  const std::map<std::string, RawTensor> tensors_ = {{"net.a", {"U8", {2}, "xy"}},
                                                     {"b", {"U8", {1}, "z"}}};
};

TEST_F(Export, RenamesAndKeepsTheBytes) {
  EXPECT_EQ(export_tensors(
                TensorSource({folder_ / "in"}), folder_ / "out", {.strip = "net.", .prefix = "p."}),
            2U);
  const SafetensorsFile out(folder_ / "out");
  const auto tensors = out.header().tensors;
  std::string bytes(2, '\0');
  out.read(bytes.data(), 2, tensors.at("p.a").begin);
  EXPECT_EQ(bytes, "xy");
  EXPECT_TRUE(tensors.contains("p.b"));
  EXPECT_THAT(test::names_in(folder_.path()), ElementsAre("in", "out"));
}

TEST_F(Export, NeverOverAnotherFile) {
  const TensorSource in({folder_ / "in"});
  write_file(folder_ / "out", "mine");
  EXPECT_THAT(message_of([&] { export_tensors(in, folder_ / "out"); }),
              HasSubstr("--force replaces it"));
  EXPECT_EQ(read_file(folder_ / "out"), "mine");
  export_tensors(in, folder_ / "out", {.replace = true});
  EXPECT_EQ(read_file(folder_ / "out"), read_file(folder_ / "in"));
  export_tensors(in, folder_ / "in", {.replace = true});
  EXPECT_EQ(read_file(folder_ / "out"), read_file(folder_ / "in"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(export_tensors(in, folder_ / "pipe", {.replace = true}), Error);
  EXPECT_THROW(export_tensors(in, folder_ / "none/out"), Error);
  EXPECT_THAT(test::names_in(folder_.path()), ElementsAre("in", "out", "pipe"));
}

TEST_F(Export, NamesMustStayDifferent) {
  put_safetensors(folder_ / "in", {{"net.b", {"U8", {1}, "x"}}, {"b", {"U8", {1}, "z"}}});
  const TensorSource in({folder_ / "in"});
  EXPECT_THAT(message_of([&] { export_tensors(in, folder_ / "out", {.strip = "net."}); }),
              HasSubstr("got 'b'"));
  EXPECT_THROW(export_tensors(in, folder_ / "out", {.strip = "b"}), Error);
  EXPECT_THROW(export_tensors(in, folder_ / "out", {.prefix = "\xff"}), Error);
  EXPECT_THAT(test::names_in(folder_.path()), ElementsAre("in"));
}

}  // namespace
}  // namespace muster
