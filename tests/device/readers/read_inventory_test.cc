#include "muster/device/read_inventory.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "muster/base/strings.h"
#include "muster/device/inventory_json.h"
#include "tests/device/readers/errors.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

std::string inventory_error(const std::string& text) {
  return error_of([&] { parse_inventory(text, "f"); });
}

struct Machine {
  const char* file;
  const char* name;
  size_t gpus;
  Link first_pair;
};

class Machines : public testing::TestWithParam<Machine> {};

TEST_P(Machines, AreWhatTheyAre) {
  const Machine& expected = GetParam();
  const Inventory inventory = read_inventory(machine_path(expected.file));
  EXPECT_TRUE(inventory.simulated);
  EXPECT_EQ(inventory.source, machine_path(expected.file));
  ASSERT_EQ(inventory.hosts.size(), 1);
  const Host& host = inventory.hosts[0];
  EXPECT_EQ(host.name, expected.name);
  EXPECT_EQ(host.gpus.size(), expected.gpus);
  if (host.gpu_links.size() > 1) {
    EXPECT_EQ(host.gpu_links[0][1], expected.first_pair);
  }
  for (const Gpu& gpu : host.gpus)
    EXPECT_EQ(gpu.health, kHealthy);
}

TEST_P(Machines, AreTheSameAsJson) {
  const Inventory inventory = read_inventory(machine_path(GetParam().file));
  EXPECT_EQ(inventory_from_json(inventory_to_json(inventory), inventory.source), inventory);
}

constexpr Machine kMachines[] = {
    {"dgx1-v100.txt", "dgx1-v100", 8, {LinkKind::nvlink, 1}},
    {"dgx2-v100.toml", "dgx2", 16, {LinkKind::nvlink, 6}},
    {"dgx-a100.txt", "dgx-a100", 8, {LinkKind::nvlink, 12}},
    {"dgx-h100.xml", "dgx-h100", 8, {LinkKind::nvlink, 18}},
    {"gb200-nvl72-tray.json", "gb200-tray", 4, {LinkKind::nvlink, 18}},
    {"gb10.json", "gb10", 1, {}},
    {"quad-pcie-dual-socket.xml", "quad-pcie", 4, {LinkKind::nvlink, 12}},
    {"workstation.toml", "workstation", 2, {LinkKind::node, 0}},
    {"mig-a100.xml", "mig-a100", 2, {}},
    {"mi250x.toml", "mi250x", 8, {LinkKind::xgmi, 4}},
};

INSTANTIATE_TEST_SUITE_P(ReadInventory,
                         Machines,
                         testing::ValuesIn(kMachines),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) {
                             if (c == '-')
                               c = '_';
                           }
                           return name;
                         });

TEST(ReadInventory, AFleetOfCapturedAndInventedHosts) {
  const Inventory fleet = read_inventory(machine_path("fleet.toml"));
  std::vector<std::string> names;
  for (const Host& host : fleet.hosts)
    names.push_back(host.name);
  EXPECT_EQ(join(names, " "), "a n0 n1 n2 pcie0 pcie1 login");
  EXPECT_EQ(fleet.hosts[3].gpus.size(), 8);
  EXPECT_NE(fleet.hosts[1].gpus[0].uuid, fleet.hosts[2].gpus[0].uuid);
  EXPECT_EQ(inventory_from_json(inventory_to_json(fleet), fleet.source), fleet);
}

TEST(ReadInventory, AFleetFileFindsOthersBesideItself) {
  const ScratchFolder folder;
  folder.write("deep/box.txt", machine_text("dgx-a100.txt"));
  const std::string fleet =
      folder.write("deep/fleet.toml", "[[host]]\nname = \"n\"\nfrom = \"box.txt\"\n");
  EXPECT_EQ(read_inventory(fleet).hosts.at(0).gpus.size(), 8);
  const std::string absent =
      folder.write("a.toml", "[[host]]\nname = \"n\"\nfrom = \"none.txt\"\n");
  try {
    read_inventory(absent);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr("a.toml (line 3, column 8): cannot open"));
  }
  const std::string round =
      folder.write("round.toml", "[[host]]\nname = \"n\"\nfrom = \"round.toml\"\n");
  EXPECT_THAT(error_of([&] { read_inventory(round); }),
              HasSubstr("expected one captured host, got a fleet file"));
}

TEST(ReadInventory, AFolderIsAllItsFiles) {
  const ScratchFolder folder;
  folder.write("b.txt", machine_text("dgx-a100.txt"));
  folder.write("a.xml", machine_text("dgx-h100.xml"));
  folder.write(".hidden", "nothing");
  const Inventory inventory = read_inventory(folder.path());
  ASSERT_EQ(inventory.hosts.size(), 2);
  EXPECT_EQ(inventory.hosts[0].name, "a");
  EXPECT_EQ(inventory.source, folder.path());
  folder.write("b.xml", machine_text("dgx-h100.xml"));
  EXPECT_THAT(error_of([&] { read_inventory(folder.path()); }), HasSubstr("'b' twice"));
  const ScratchFolder empty;
  EXPECT_THAT(error_of([&] { read_inventory(empty.path()); }), HasSubstr("got no file"));
}

TEST(ReadInventory, ContentTellsTheKindAndNotTheName) {
  const ScratchFolder folder;
  EXPECT_EQ(
      read_inventory(folder.write("a.json", machine_text("dgx-h100.xml"))).hosts.at(0).gpus.size(),
      8);
  EXPECT_EQ(
      read_inventory(folder.write("b.xml", machine_text("mi250x.toml"))).hosts.at(0).gpus.size(),
      8);
  EXPECT_EQ(parse_inventory("\xef\xbb\xbf" + machine_text("gb200-nvl72-tray.json"), "f")
                .hosts.at(0)
                .gpus.size(),
            4);
  EXPECT_EQ(
      parse_inventory("\xef\xbb\xbf" + machine_text("dgx-h100.xml"), "f").hosts.at(0).gpus.size(),
      8);
}

TEST(ReadInventory, OtherFilesAreErrors) {
  EXPECT_THAT(inventory_error(""), HasSubstr("or a fleet file, got nothing"));
  EXPECT_THAT(inventory_error("hello\x1b[2J"), HasSubstr("got 'hello?[2J'"));
  EXPECT_THAT(inventory_error("<html/>"), HasSubstr("got <html>"));
  EXPECT_THAT(inventory_error("<"), HasSubstr("got <>"));
  EXPECT_THAT(inventory_error("{"), HasSubstr("expected JSON"));
  EXPECT_THAT(inventory_error("#!/bin/sh\nx=1"), HasSubstr("expected [[host]] entries, got 'x'"));
  EXPECT_THAT(inventory_error(std::string("\xff\xfe<\0a\0", 6)),
              HasSubstr("expected UTF-8, which iconv -f utf-16 -t utf-8 gives, got UTF-16"));
  EXPECT_THROW(read_inventory("/nowhere/at/all"), Error);
}

// What people have at hand: each is named, with the command that gives the right one.
TEST(ReadInventory, FormatsThatLookLikeOthersAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n==============NVSMI LOG==============\n\nAttached GPUs                             : 1\n",
       "expected XML, which nvidia-smi -q -x gives, got the text of nvidia-smi -q"},
      {"Mon Apr 24\n+-----+\n| NVIDIA-SMI 535.54.03   Driver Version: 535.54.03 |\n",
       "expected XML, which nvidia-smi -q -x gives, got the table of nvidia-smi"},
      {"GPU 0: Tesla T4 (UUID: GPU-5)\n",
       "expected nvidia-smi topo -m beside it, got the list of nvidia-smi -L alone"},
      {"======== ROCm System Management Interface ========\n       GPU0         GPU1\nGPU0   0     "
       "       "
       "15\n",
       "expected what muster devices --json gives there, got the text of rocm-smi"},
      {"name, memory.total [MiB]\nTesla T4, 15360 MiB\n", "got CSV of nvidia-smi"},
      {"GPU models and configuration: \nGPU 0: Tesla T4\n",
       "got PyTorch's collect_env without a GPU topology"},
      {"01:00.0 3D controller: NVIDIA Corporation TU104GL [Tesla T4] (rev a1)\n",
       "got the text of lspci"},
      {"Machine (31GB total)\n  Package L#0\n",
       "expected XML, which lstopo --of xml gives, got the text of lstopo"},
      {"ROCk module is loaded\n=====\n",
       "expected what muster devices --json gives there, got the text of rocminfo"},
      {"{\"card0\": {\"GPU ID\": \"0x740f\"}, \"system\": {}}",
       "expected what muster devices --json gives there, got JSON of rocm-smi"},
      {"{\n  \"card0\": {}\n}", "got JSON of rocm-smi"},
      {"[\n  {\n    \"gpu\": 0\n", "got JSON of amd-smi"},
      {"GPU: 0\n    BDF: 0000:c1:00.0\n    UUID: 3eff\n    KFD_ID: 45421\n",
       "got the text of amd-smi list"},
      {"GPU: 0\n    ASIC:\n        MARKET_NAME: MI300X\n", "got the text of amd-smi"},
      {"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
       "expected XML, which nvidia-smi -q -x gives, got an error of nvidia-smi"},
      {"Failed to initialize NVML: Driver/library version mismatch\n",
       "got an error of nvidia-smi"},
      {"No devices were found\n", "got an error of nvidia-smi"},
      {"\x1f\x8b\x08", "expected the unpacked file, got a file packed by gzip"},
      {"\xfd"
       "7zXZ",
       "got a file packed by xz"},
  };
  for (const auto& [text, error] : cases)
    EXPECT_THAT(inventory_error(text), HasSubstr(error));
}

TEST(ReadInventory, AFileThatIsBrokenOffIsSaidToBe) {
  const std::string text = machine_text("mig-a100.xml");
  EXPECT_THAT(inventory_error(text.substr(0, 2000)),
              HasSubstr("expected XML to its end, </nvidia_smi_log>, got a part of it"));
  EXPECT_THAT(inventory_error("<system><cpu></system>"), HasSubstr("expected XML, got "));
}

TEST(ReadInventory, AByteOrderMarkIsNothing) {
  const std::string topo =
      "\tGPU0\tGPU1\tCPU Affinity\r\nGPU0\t X \tNV12\t0-31\r\nGPU1\tNV12\t X \t0-31\r\n";
  EXPECT_EQ(parse_inventory("\xef\xbb\xbf" + topo, "f").hosts.at(0).gpus.size(), 2);
  EXPECT_EQ(parse_inventory("\xef\xbb\xbf" + machine_text("workstation.toml"), "f")
                .hosts.at(0)
                .gpus.size(),
            2);
}

// As nvidia-smi does where a GPU's infoROM is bad.
TEST(ReadInventory, AWarningAboveXmlIsANote) {
  const std::string warning = "WARNING: infoROM is corrupted at gpu 0000:00:1E.0\n";
  const Host host = parse_inventory(warning + machine_text("mig-a100.xml"), "f").hosts.at(0);
  EXPECT_EQ(host.gpus.size(), 2);
  EXPECT_THAT(host.notes,
              testing::ElementsAre(HasSubstr("infoROM is corrupted at gpu 0000:00:1E.0")));
  EXPECT_EQ(inventory_from_json(inventory_to_json({.hosts = {host}}), "f").hosts.at(0).notes,
            host.notes);
  EXPECT_THAT(
      inventory_error(warning + "<?xml version=\"1.0\"?>\n<system><cpu numaid='x'/></system>"),
      HasSubstr("(line 3)"));
}

TEST(ReadInventory, TwoDocumentsInAFileAreAnError) {
  EXPECT_THAT(
      inventory_error(
          "<?xml version=\"1.0\"?><nvidia_smi_log/>\n<?xml version=\"1.0\"?><nvidia_smi_log/>"),
      HasSubstr("expected one document in a file (several go into a folder, a file each), got a "
                "second one, "
                "<nvidia_smi_log> (line 2)"));
}

TEST(ReadInventory, EntitiesAreHarmless) {
  std::string laughs = "<!DOCTYPE system [\n<!ENTITY a \"ha\">\n";
  for (char c = 'b'; c <= 'k'; ++c) {
    laughs += cat("<!ENTITY ", c, " \"");
    for (int i = 0; i < 10; ++i)
      laughs += cat("&", static_cast<char>(c - 1), ";");
    laughs += "\">\n";
  }
  EXPECT_EQ(parse_inventory(laughs + "]>\n<system>&k;</system>", "f").hosts.at(0).gpus.size(), 0);
}

TEST(ReadInventory, HugeAndEndlessFilesAreErrors) {
  const ScratchFolder folder;
  const std::string path = folder.write("huge.xml", "<system>");
  std::filesystem::resize_file(path, uintmax_t{1} << 30);  // with a hole: it takes no room
  EXPECT_THAT(error_of([&] { read_inventory(path); }),
              HasSubstr("expected at most 64 MiB, got more"));
  EXPECT_THAT(error_of([&] { read_inventory("/dev/zero"); }),
              HasSubstr("expected at most 64 MiB, got more"));
}

TEST(ReadInventory, CutOffFilesNeverCrash) {
  for (const Machine& machine : kMachines) {
    const std::string text = machine_text(machine.file);
    for (size_t size = 0; size < text.size(); size += 1 + text.size() / 50) {
      error_of([&] { parse_inventory(text.substr(0, size), "f"); });
    }
  }
}

}  // namespace
}  // namespace muster
