#include "muster/placement/selection.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> selected(const std::string& text, const Host& host,
                          const std::optional<std::string>& mask = {}) {
  std::vector<int> indices;
  for (const UsableGpu& gpu : select_gpus(parse_selection(text), host, usable_gpus(host, mask))) {
    indices.push_back(host.gpus[gpu.position].index.value);
  }
  return indices;
}

std::string error_of(const std::string& text, const Host& host = gpu_host(0, 4),
                     const std::optional<std::string>& mask = {}) {
  try {
    selected(text, host, mask);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Selection, EverythingIsTheDefault) {
  EXPECT_THAT(selected("", gpu_host(0, 3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(selected("all", gpu_host(0, 3)), ElementsAre(0, 1, 2));
}

TEST(Selection, IndicesAndRangesInTheOrderGiven) {
  const Host host = gpu_host(0, 12);
  EXPECT_THAT(selected("3", host), ElementsAre(3));
  EXPECT_THAT(selected("3,1,0", host), ElementsAre(3, 1, 0));
  EXPECT_THAT(selected("0,2-5", host), ElementsAre(0, 2, 3, 4, 5));
  EXPECT_THAT(selected("7-8,2-2,11", host), ElementsAre(7, 8, 2, 11));
  EXPECT_THAT(selected(" 3 , 1-2 ", host), ElementsAre(3, 1, 2));
}

TEST(Selection, UuidsAndTheirBeginnings) {
  const Host host = gpu_host(10, 4);
  EXPECT_THAT(selected(test_uuid(10, 2), host), ElementsAre(2));
  EXPECT_THAT(selected("GPU-0a03,1,GPU-0A00", host), ElementsAre(3, 1, 0));
}

TEST(Selection, PointsAtTheCharacter) {
  EXPECT_EQ(error_of("0,x3"),
            "--gpus 0,x3: expected an index (3), a range (2-5), the beginning of a UUID (GPU-8f3c) or all, "
            "got 'x3' "
            "(at character 3)\n"
            "  --gpus 0,x3\n"
            "           ^");
}

TEST(Selection, BadTexts) {
  const std::pair<const char*, const char*> cases[] = {
      {" ", "got nothing (at character 2)"},
      {",", "got nothing (at character 1)"},
      {"0,", "got nothing (at character 3)"},
      {"0,,1", "got nothing (at character 3)"},
      {"0;1", "got ';1' (at character 2)"},
      {"1-", "got nothing (at character 3)"},
      {"-1", "got '-1' (at character 1)"},
      {"0-x", "got 'x' (at character 3)"},
      {"1-2-3", "got '-3' (at character 4)"},
      {"0 1", "got ' 1' (at character 2)"},
      {"3-1", "a range that counts up, got 3-1 (at character 1)"},
      {"99999999999", "an index up to 65535 (at character 1)"},
      {"0,65536", "(at character 3)"},
      {"ALL", "got 'ALL' (at character 1)"},
      {"gpu-0a", "got 'gpu-0a' (at character 1)"},
      {"MIG-1", "got 'MIG-1' (at character 1)"},
      {"0,GPU-zz", "hexadecimal digits and '-' after GPU-, got 'z' (at character 7)"},
      {"0,1,0", "each GPU once, got GPU 0 again"},
      {"0-2,1", "got GPU 1 again"},
      {"all,1", "got GPU 1 again"},
      {"0,GPU-0000", "got GPU 0 again"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(error_of(text), HasSubstr(expected)) << text;
}

TEST(Selection, UnknownGpusAreNamedWithThoseThereAre) {
  EXPECT_THAT(error_of("0,7"),
              HasSubstr("expected the index of a GPU that can be used, got 7; host n0 has GPUs 0, "
                        "1, 2, 3 (at character 3)"));
  EXPECT_THAT(error_of("2-5"), HasSubstr("got 4;"));
  EXPECT_THAT(error_of("GPU-ff"), HasSubstr("got GPU-ff;"));
  EXPECT_THAT(error_of("GPU-000"), HasSubstr("which fits " + test_uuid(0, 0) + " and " + test_uuid(0, 1)));
}

TEST(Selection, SaysWhyAGpuCannotBeUsed) {
  Host host = gpu_host(0, 4);
  EXPECT_THAT(error_of("0", host, "2,1"),
              HasSubstr("got 0; host n0 has GPUs 2, 1; CUDA_VISIBLE_DEVICES='2,1' shows 2 of 4 GPUs"));
  host.gpus[1].health = "GPU is lost";
  EXPECT_THAT(error_of("1", host), HasSubstr("host n0 has GPUs 0, 2, 3; left out: GPU 1: GPU is lost"));
}

TEST(Selection, LongAndHostileTextsAreShownShort) {
  const std::string error = error_of("0\x1b[2J" + std::string(100'000, 'x'));
  EXPECT_LT(error.size(), 800);
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
}

TEST(UsableGpus, OrdinalsUnderAMask) {
  Host host = gpu_host(0, 4);
  host.gpus[3].health = "GPU is lost";
  const auto usable = usable_gpus(host, "2,3,0");
  EXPECT_THAT(usable.gpus, ElementsAre(UsableGpu{2, {0}}, UsableGpu{0, {2}}));
  EXPECT_THAT(usable.sick, ElementsAre("GPU 3: GPU is lost"));
  EXPECT_EQ(usable.mask_note, "CUDA_VISIBLE_DEVICES='2,3,0' shows 3 of 4 GPUs");
}

TEST(UsableGpus, WithoutAMaskTheOrderIsTheIndex) {
  Host host = gpu_host(0, 3);
  std::swap(host.gpus[0], host.gpus[2]);
  EXPECT_THAT(usable_gpus(host, {}).gpus,
              ElementsAre(UsableGpu{2, {0}}, UsableGpu{1, {1}}, UsableGpu{0, {2}}));
}

TEST(UsableGpus, IndicesOnUnequalGpusAreExplained) {
  Host host = gpu_host(0, 2);
  host.gpus[1].model = "Other";
  EXPECT_THAT(usable_gpus(host, "1,0").mask_note, HasSubstr("read in PCI order"));
  EXPECT_EQ(usable_gpus(host, test_uuid(0, 1) + "," + test_uuid(0, 0)).mask_note, "");
}

}  // namespace
}  // namespace muster
