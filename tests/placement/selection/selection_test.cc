#include "muster/placement/selection/selection.h"

#include <gmock/gmock.h>

#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> selected(const std::string& text,
                          const Host& host,
                          const std::optional<std::string>& mask = {}) {
  std::vector<int> indices;
  for (const UsableGpu& gpu :
       select_gpus(Selection(text), host, usable_gpus(host, {.cuda = mask}))) {
    indices.push_back(host.gpus[gpu.position].index.value);
  }
  return indices;
}

std::string selection_error(const std::string& text,
                            const Host& host = gpu_host(0, 4),
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
  EXPECT_EQ(selection_error("0,x3"),
            "--gpus 0,x3: expected an index (3), a range (2-5), the beginning of a UUID (GPU-8f3c, "
            "MIG-8f3c), all, "
            "idle, free:2, fastest:2, a filter (mem>=20GiB, free>=20GiB, model=A100) or what to "
            "leave out (!3), "
            "got 'x3' (at character 3)\n"
            "  --gpus 0,x3\n"
            "           ^");
}

TEST(Selection, BadTexts) {
  const std::pair<const char*, const char*> cases[] = {
      {" ", "got nothing (at character 2)"},
      {",", "got nothing (at character 1)"},
      {"0,", "got nothing (at character 3)"},
      {"0,,1", "got nothing (at character 3)"},
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
      {"mig-1", "got 'mig-1' (at character 1)"},
      {"MIG-1", "the UUID of a MIG instance that can be used, got MIG-1; host n0"},
      {"MIG-xy", "hexadecimal digits and '-' after MIG-, got 'x' (at character 5)"},
      {"0,GPU-zz", "hexadecimal digits and '-' after GPU-, got 'z' (at character 7)"},
      {"0,1,0", "each GPU once, got GPU 0 again"},
      {"0-2,1", "got GPU 1 again"},
      {"all,1", "got GPU 1 again"},
      {"0,GPU-0000", "got GPU 0 again"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_THAT(selection_error(text), HasSubstr(expected)) << text;
}

TEST(Selection, UnknownGpusAreNamedWithThoseThereAre) {
  EXPECT_THAT(selection_error("0,7"),
              HasSubstr("expected the index of a GPU that can be used, got 7; host n0 has GPUs 0, "
                        "1, 2, 3 (at character 3)"));
  EXPECT_THAT(selection_error("2-5"), HasSubstr("got 4;"));
  EXPECT_THAT(selection_error("GPU-ff"), HasSubstr("got GPU-ff;"));
  EXPECT_THAT(selection_error("GPU-000"),
              HasSubstr("which fits " + test_uuid(0, 0) + " and " + test_uuid(0, 1)));
}

TEST(Selection, SaysWhyAGpuCannotBeUsed) {
  Host host = gpu_host(0, 4);
  EXPECT_THAT(
      selection_error("0", host, "2,1"),
      HasSubstr("got 0; host n0 has GPUs 2, 1; CUDA_VISIBLE_DEVICES='2,1' shows 2 of 4 GPUs"));
  host.gpus[1].health = "GPU is lost";
  EXPECT_THAT(selection_error("1", host),
              HasSubstr("host n0 has GPUs 0, 2, 3; left out: GPU 1: GPU is lost"));
}

TEST(Selection, LongAndHostileTextsAreShownShort) {
  const std::string error = selection_error("0\x1b[2J" + std::string(100'000, 'x'));
  EXPECT_LT(error.size(), 800);
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
}

// Four GPUs with 40, 40, 80 and 80 GiB, of which 0, 5, 30 and 0 are used; GPU 2 has a process.
Host busy_host() {
  Host host = gpu_host(0, 4, "NVIDIA A100-PCIE-40GB");
  const uint64_t total[] = {40, 40, 80, 80};
  const uint64_t used[] = {0, 5, 30, 0};
  for (size_t i = 0; i < 4; ++i) {
    host.gpus[i].memory_total_bytes = total[i] * kGiB;
    host.gpus[i].memory_free_bytes = (total[i] - used[i]) * kGiB;
  }
  host.gpus[2].processes = {{.pid = 7, .used_memory_bytes = 30 * kGiB}};
  host.gpus[3].model = "NVIDIA H100 80GB HBM3";
  return host;
}

TEST(Selection, Exclusions) {
  const Host host = gpu_host(0, 6);
  EXPECT_THAT(selected("!3", host), ElementsAre(0, 1, 2, 4, 5));
  EXPECT_THAT(selected("!1-3,! 5", host), ElementsAre(0, 4));
  EXPECT_THAT(selected("!GPU-0002,all", host), ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(selected("4,0-3,!1", host), ElementsAre(4, 0, 2, 3)) << "wherever it stands";
  EXPECT_THAT(selected("!17", host), ElementsAre(0, 1, 2, 3, 4, 5)) << "there is none to leave out";
  EXPECT_THAT(selected("3,!3", host), ElementsAre());
}

TEST(Selection, Idle) {
  Host host = busy_host();
  EXPECT_THAT(selected("idle", host), ElementsAre(0, 3));
  EXPECT_THAT(selected("2,idle", host), ElementsAre(2, 0, 3));
  EXPECT_THAT(selected("idle,3", host), ElementsAre(0, 3)) << "what is named is not given twice";
  host.gpus[0].memory_free_bytes = 40 * kGiB - 500 * (kGiB >> 10);
  EXPECT_THAT(selected("idle", host), ElementsAre(0, 3)) << "a driver or a desktop takes some";
  host.gpus[0].memory_free_bytes = 39 * kGiB;
  EXPECT_THAT(selected("idle", host), ElementsAre(3));
}

TEST(Selection, FreeTakesTheLeastUsed) {
  const Host host = busy_host();
  EXPECT_THAT(selected("free:1", host), ElementsAre(0));
  EXPECT_THAT(selected("free:3", host), ElementsAre(0, 3, 1));
  EXPECT_THAT(selected("free:2,!0", host), ElementsAre(3, 1));
  EXPECT_THAT(selected("free:1,0", host), ElementsAre(3, 0)) << "0 is taken by name";
  EXPECT_THAT(selected("free:1,free:1", host), ElementsAre(0, 3));
  EXPECT_THAT(selection_error("1,free:3", host),
              HasSubstr("expected 3 GPUs with no compute process, got 2 (GPU 0, GPU 3); host n0 "
                        "has GPUs 0, 1, 2, 3 "
                        "(at character 3)"));
  EXPECT_THAT(selection_error("free:9,!0-3", host),
              HasSubstr("expected 9 GPUs with no compute process, got 0;"));
}

TEST(Selection, FastestGoesByScores) {
  const Host host = gpu_host(0, 4);
  const Scores scores = {{"0", 100}, {"1", 90}, {"2", 80}, {"3", 110}};
  const auto fastest = [&](const std::string& text, const Scores& given) {
    std::vector<int> indices;
    for (const UsableGpu& gpu : select_gpus(Selection(text), host, usable_gpus(host, {}), given)) {
      indices.push_back(host.gpus[gpu.position].index.value);
    }
    return indices;
  };
  EXPECT_THAT(fastest("fastest:2", scores), ElementsAre(3, 0));
  EXPECT_THAT(fastest("fastest:2,!3", scores), ElementsAre(0, 1));
  EXPECT_THAT(selection_error("fastest:2", host),
              HasSubstr("expected a score for each GPU, got none for GPU 0 "
                        "(measure them with `muster bench device`, or give "
                        "`muster run` --scores FILE with all of them)"));
  EXPECT_THROW(fastest("fastest:5", scores), Error);
}

TEST(Selection, Filters) {
  const Host host = busy_host();
  const std::pair<const char*, std::vector<int>> cases[] = {
      {"mem>=80GiB", {2, 3}},
      {"mem>40GiB", {2, 3}},
      {"mem=40GiB", {0, 1}},
      {"mem<80GiB", {0, 1}},
      {"mem<=80GiB", {0, 1, 2, 3}},
      {"mem > 40 GiB", {2, 3}},
      {"free>=40GiB", {0, 2, 3}},
      {"free>=40GiB,mem<80GiB", {0}},
      {"free<50.5GiB", {0, 1, 2}},
      {"model=a100", {0, 1, 2}},
      {"model=H100 80", {3}},
      {"model=A100,mem>=41GB", {0, 1, 2}},
      {"3-3,1,model=A100", {1}},
      {"mem>=80GiB,0-2", {2}},
      {"free:1,model=H100", {3}},
      {"idle,mem<80GiB", {0}},
      {"model=B200", {}},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(selected(text, host), expected) << text;
}

TEST(Selection, MemoryThatIsNotKnownPassesNoFilter) {
  const Host host = gpu_host(0, 1);  // as of a GPU that uses the CPU's memory
  for (const char* const text : {"mem>=1GiB", "mem<80GiB", "free<=80GiB", "free>=1GiB"})
    EXPECT_EQ(selected(text, host), std::vector<int>{}) << text;
}

TEST(Selection, Hosts) {
  const auto of = [](const std::string& text, int number) {
    return selected(text, gpu_host(number, 4));
  };
  EXPECT_THAT(of("n0:0,1;n1:2-3", 0), ElementsAre(0, 1));
  EXPECT_THAT(of("n0:0,1;n1:2-3", 1), ElementsAre(2, 3));
  EXPECT_THAT(of("n0:0,1;n1:2-3", 2), ElementsAre()) << "hosts that are not named get none";
  EXPECT_THAT(of(" n1 : 3 , !0", 1), ElementsAre(3));
  EXPECT_THAT(of("n1:free:2", 1), ElementsAre(0, 1));
  EXPECT_THAT(of("n1:all", 1), ElementsAre(0, 1, 2, 3));
  const Host host = gpu_host(0, 4);
  EXPECT_NO_THROW(check_selection_hosts(Selection("n0:1"), {&host}));
  EXPECT_THROW(check_selection_hosts(Selection("n0:1;n1:1"), {&host}), Error);
}

// Every text with the column of its caret.
TEST(Selection, TheCaretStandsUnderTheMistake) {
  const std::pair<const char*, size_t> cases[] = {
      {"x", 1},         {"0,x", 3},          {"0, x", 4},       {"!", 2},
      {"!all", 2},      {"!mem>1GB", 2},     {"free:", 6},      {"free:0", 6},
      {"free:x", 6},    {"free:2x", 7},      {"free", 1},       {"idle2", 1},
      {"fastest:", 9},  {"fastest:-1", 9},   {"mem", 1},        {"mem>", 5},
      {"mem>=20", 6},   {"mem>=x", 6},       {"mem=>20GiB", 5}, {"mem>=20 XiB", 6},
      {"free>=", 7},    {"model=", 7},       {"model>A100", 1}, {"0;1", 1},
      {"a:0;1", 5},     {"a:0;", 5},         {"a:0;a:1", 5},    {":0", 1},
      {"a:", 3},        {"a:b:0", 3},        {"a:0,b:1", 5},    {"a:0,;b:1", 5},
      {"3,GPU-zz", 7},  {"1,MIG-GPU-q", 11}, {"a:99999999", 3}, {"0-1-2", 4},
      {"a:1,3-2", 5},   {"n0:1, 1", 7},      {"n0:7", 4},       {"mem>=1GiB,9", 11},
      {"model=é,x", 9},
  };
  for (const auto& [text, column] : cases) {
    const std::string error = selection_error(text, gpu_host(0, 4));
    EXPECT_THAT(error, HasSubstr("(at character " + std::to_string(column) + ")")) << text;
    EXPECT_EQ(error.substr(error.rfind('\n') + 1), std::string(8 + column, ' ') + "^") << text;
  }
}

TEST(Selection, OfALongTextTheMistakeIsShown) {
  std::string text = "0";
  for (int index = 1; index < 200; ++index)
    text += cat(",", index);
  const std::string error = selection_error(cat(text, ",x3,", text));
  EXPECT_THAT(error, HasSubstr(", got 'x3' (at character 691)\n"));
  EXPECT_THAT(error, HasSubstr(",198,199,x3,0,1,"));
  EXPECT_EQ(error.substr(error.rfind('\n') + 1), std::string(2 + 1 + 60, ' ') + "^");
  EXPECT_LT(error.size(), 700U);
}

TEST(Selection, AnyTextIsReadOrRefused) {
  constexpr const char* kPieces[] = {"0",       "3",      "-",     ",",    ";",     "a:",  "!",
                                     "all",     "idle",   "free:", "free", "GPU-0", "mem", ">=",
                                     "fastest", "model=", "20GB",  " ",    "MIG-",  "9999"};
  std::mt19937 random(5);
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t length = random() % 7; length > 0; --length)
      text += kPieces[random() % std::size(kPieces)];
    try {
      const Selection selection = Selection(text);
      EXPECT_FALSE(selection.parts.empty());
      for (const SelectionPart& part : selection.parts)
        EXPECT_FALSE(part.items.empty());
      ++read;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << text;
    }
  }
  EXPECT_GT(read, 1000);
}

TEST(UsableGpus, OrdinalsUnderAMask) {
  Host host = gpu_host(0, 4);
  host.gpus[3].health = "GPU is lost";
  const auto usable = usable_gpus(host, {.cuda = "2,3,0"});
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

TEST(UsableGpus, AmdGoesByItsOwnVariables) {
  Host host = gpu_host(0, 4);
  for (Gpu& gpu : host.gpus)
    gpu.vendor = Vendor::amd;
  EXPECT_THAT(usable_gpus(host, {}).gpus.size(), 4);
  const auto usable = usable_gpus(host, {.rocr = "3,1,0", .hip = "2,0"});
  EXPECT_THAT(usable.gpus, ElementsAre(UsableGpu{0, {0}}, UsableGpu{3, {1}}));
  EXPECT_EQ(usable.mask_note,
            "ROCR_VISIBLE_DEVICES='3,1,0' HIP_VISIBLE_DEVICES='2,0' shows 2 of 4 GPUs");
  EXPECT_THAT(usable_gpus(host, {.cuda = "1"}).gpus, ElementsAre(UsableGpu{1, {0}}))
      << "HIP reads CUDA's too";
}

TEST(UsableGpus, AMaskThatNamesMoreThanThereIsAndHidesNothingSaysWhatIsWrong) {
  Host host = gpu_host(0, 2);
  for (Gpu& gpu : host.gpus)
    gpu.vendor = Vendor::amd;
  const auto usable = usable_gpus(host, {.hip = "0,1,9"});
  EXPECT_EQ(usable.gpus.size(), 2);
  EXPECT_TRUE(usable.mask_is_wrong);
  EXPECT_THAT(usable.mask_note, HasSubstr("there is no such GPU"));
}

TEST(UsableGpus, IndicesOnUnequalGpusAreExplained) {
  Host host = gpu_host(0, 2);
  host.gpus[1].model = "Other";
  EXPECT_THAT(usable_gpus(host, {.cuda = "1,0"}).mask_note, HasSubstr("read in PCI order"));
  EXPECT_EQ(usable_gpus(host, {.cuda = test_uuid(0, 1) + "," + test_uuid(0, 0)}).mask_note, "");
}

}  // namespace
}  // namespace muster
