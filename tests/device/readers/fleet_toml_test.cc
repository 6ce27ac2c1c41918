#include "muster/device/readers/fleet_toml.h"

#include <gmock/gmock.h>

#include <set>

#include "muster/base/strings.h"
#include "muster/device/readers/captured_host.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::HasSubstr;

Host captured(const std::string& path) {
  if (path != "box.xml")
    throw Error(ErrorCode::invalid_argument, cat("cannot read ", path));
  return {.name = "box",
          .gpus = {Gpu{.uuid = {"GPU-1"}, .model = "Test", .mig = {{.uuid = {"MIG-1"}}}}},
          .driver_version = "1.2"};
}

std::vector<Host> hosts_of(const std::string& text) {
  return fleet_hosts(text, "f.toml", captured);
}

std::string fleet_error(const std::string& text) {
  return error_of([&] { hosts_of(text); });
}

std::string entry(const std::string& rest) {
  return cat("[[host]]\nname = \"a\"\n", rest);
}

TEST(FleetToml, OneHost) {
  const Host host = hosts_of(entry("gpus = \"8xH100-80GB\"\nnvlink = \"all\"\nnuma = 2\ncores = "
                                   "16\nnics = 4\ncpu_slots = 6"))
                        .at(0);
  EXPECT_EQ(host.name, "a");
  EXPECT_EQ(host.num_cores, 16);
  EXPECT_EQ(host.cpu_slots, 6);
  ASSERT_EQ(host.gpus.size(), 8);
  const Gpu& gpu = host.gpus[5];
  EXPECT_EQ(gpu.index.value, 5);
  EXPECT_EQ(gpu.uuid, invented_uuid("a/5"));
  EXPECT_EQ(gpu.model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpu.memory_free_bytes, uint64_t{80} << 30);
  EXPECT_EQ(gpu.compute_capability, "9.0");
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.near_cpus, "8-15");
  EXPECT_EQ(host.gpu_links[0][7], (Link{LinkKind::nvlink, 18}));
  EXPECT_EQ(host.gpu_links[3][3].kind, LinkKind::self);
  EXPECT_EQ(host.cores.at(8), (CpuCore{.cpus = {8}, .numa_node = 1, .socket = 1, .l3 = 1}));
  EXPECT_EQ(host.nics.at(3).name, "mlx5_3");
  EXPECT_EQ(host.nic_links[7][3].kind, LinkKind::pix);
  EXPECT_EQ(host.nic_links[5][3].kind, LinkKind::node);
  EXPECT_EQ(host.nic_links[0][3].kind, LinkKind::sys);
}

TEST(FleetToml, Layouts) {
  const Host pairs =
      hosts_of(entry("gpus = \"4xA100-PCIE-40GB\"\nnvlink = \"pairs\"\nnuma = 2")).at(0);
  EXPECT_EQ(pairs.gpu_links[2][3], (Link{LinkKind::nvlink, 12}));
  EXPECT_EQ(pairs.gpu_links[1][2].kind, LinkKind::sys);
  const Host none = hosts_of(entry("gpus = \"1xRTX4090, 1xrtx3090\"")).at(0);
  EXPECT_EQ(none.gpu_links[0][1].kind, LinkKind::node);
  EXPECT_EQ(none.gpus[1].model, "NVIDIA GeForce RTX 3090");
  const Host links =
      hosts_of(entry("gpus = \"2xV100-16GB\"\nnvlink = [[\"X\", \"PIX\"], [\"PIX\", \"X\"]]"))
          .at(0);
  EXPECT_EQ(links.gpu_links[0][1].kind, LinkKind::pix);
  const Host amd = hosts_of(machine_text("mi250x.toml")).at(0);
  EXPECT_EQ(amd.gpu_links[0][1], (Link{LinkKind::xgmi, 4}));
  EXPECT_EQ(amd.gpu_links[0][6], (Link{LinkKind::xgmi, 2}));
  EXPECT_EQ(amd.gpu_links[0][7].kind, LinkKind::sys);
  EXPECT_EQ(amd.gpus[0].vendor, Vendor::amd);
}

TEST(FleetToml, CountsAndCapturedFiles) {
  const auto hosts = hosts_of(
      "[[host]]\nname = \"n\"\nfrom = \"box.xml\"\ncount = 3\ncpu_slots = 9\n[[host]]\nname = "
      "\"x\"\ncount = "
      "2\n"
      "[[host]]\nname = \"one\"\nfrom = \"box.xml\"\n");
  ASSERT_EQ(hosts.size(), 6);
  EXPECT_EQ(hosts[2].name, "n2");
  EXPECT_EQ(hosts[2].driver_version, "1.2");
  EXPECT_EQ(hosts[2].cpu_slots, 9);
  EXPECT_EQ(hosts[4].name, "x1");
  EXPECT_EQ(hosts[4].gpu_note, "the fleet file gives it none");
  EXPECT_EQ(hosts[5].name, "one");
  EXPECT_EQ(hosts[0].gpus[0].uuid.value, "GPU-1") << "stays with the first";
  std::set<std::string> uuids;
  for (const Host& host : hosts) {
    for (const Gpu& gpu : host.gpus) {
      EXPECT_TRUE(gpu.uuid.value.starts_with("GPU-"));
      EXPECT_TRUE(gpu.mig.at(0).uuid.value.starts_with("MIG-"));
      EXPECT_TRUE(uuids.insert(gpu.uuid.value).second &&
                  uuids.insert(gpu.mig[0].uuid.value).second);
    }
  }
}

TEST(FleetToml, OtherLettersInCommentsOnly) {
  EXPECT_EQ(hosts_of("# die große Maschine\n" + entry("gpus = \"1xH100-80GB\"  # ƀ\n")).size(), 1U);
  EXPECT_THAT(fleet_error("\n\xc6\x8b = 1"),
              testing::AllOf(HasSubstr("line 2, column 1"), HasSubstr("ASCII outside comments")));
}

TEST(FleetToml, SameFileSameFleet) {
  const std::string text = entry("gpus = \"8xH100-80GB\"\ncount = 5");
  EXPECT_EQ(hosts_of(text), hosts_of(text));
}

TEST(FleetToml, LargeFleet) {
  const auto hosts = hosts_of(
      entry("gpus = \"8xH100-80GB\"\nnvlink = \"all\"\nnuma = 2\nnics = 8\ncount = 12500"));
  ASSERT_EQ(hosts.size(), 12500);
  EXPECT_EQ(hosts.back().name, "a12499");
  EXPECT_EQ(hosts.back().gpus.at(7).uuid, invented_uuid("a12499/7"));
}

TEST(FleetToml, ErrorsNameLineAndColumn) {
  const std::pair<std::string, const char*> cases[] = {
      {"a = = 1", "inventory f.toml: expected TOML, got "},
      {"", "expected [[host]] entries, got none (line 1, column 1)"},
      {"[hosts]\nname = 1", "expected [[host]] entries, got 'hosts' (line 1, column 2)"},
      {"[host]\nname = \"a\"", "expected [[host]] entries, got none"},
      {"host = [1]", "expected [[host]], got something else (line 1, column 9)"},
      {"[[host]]\ngpus = \"1xT4\"", "expected name = \"…\", got none (line 1"},
      {entry("colour = 1"), "got 'colour' (line 3, column 1)"},
      {entry("from = \"box.xml\"\ngpus = \"1xT4\""), "(beside from), got 'gpus' (line 4"},
      {entry("count = 0"), "expected count from 1 to 100000, got 0 (line 3, column 9)"},
      {entry("count = 9223372036854775807"), "got 9223372036854775807 (line 3"},
      {entry("count = 99999999999999999999"), "expected TOML"},
      {entry("count = \"x\""), "expected count from 1 to 100000, got something else"},
      {entry("numa = 0"), "expected numa from 1 to 64, got 0"},
      {entry("numa = 4\ncores = 2"), "expected cores from 4 to 4096, got 2"},
      {entry("gpus = 8"), "expected text for gpus, got something else (line 3, column 8)"},
      {entry("gpus = \"8\""), "expected gpus as \"8xH100-80GB\", got '8'"},
      {entry("gpus = \"8xH100-80GB,\""), "got ''"},
      {entry("gpus = \"0xT4\""), "got '0xT4'"},
      {entry("gpus = \"65xT4\""), "expected at most 64 GPUs on a host, got 65"},
      {entry("gpus = \"8xZ80\""), "got 'Z80' (line 3, column 8)"},
      {entry("gpus = \"8xA100\""), "expected a GPU model of P100-16GB, "},
      {entry("gpus = \"2xT4\"\nnvlink = \"all\""),
       "expected a GPU model with NVLink, got T4-16GB (line 4, column 10)"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = \"some\""), R"("pairs" or a matrix, got 'some')"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = [[0, 1]]"), "expected 2 rows, one a GPU, got 1"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = [[0, 1], [1]]"), "expected a row of 2"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = [[0, 1], [2, 0]]"),
       "expected the link of row 1, NV1, got NV2 (line 4, column 20)"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = [[1, 1], [1, 0]]"), "expected \"X\" or 0"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = [[0, -1], [-1, 0]]"), "expected a number of links"},
      {entry("gpus = \"2xV100-16GB\"\nnvlink = [[0, \"FAST\"], [1, 0]]"), "got FAST"},
      {entry("nics = 65"), "expected nics from 0 to 64"},
      {entry("[[host]]\nname = \"a\""), "expected each host's name once, got 'a' twice (line 3"},
      {entry("count = 2\n[[host]]\nname = \"a1\""), "got 'a1' twice"},
      {"[[host]]\nname = \"a b\"", "without blanks"},
      {"[[host]]\nname = \"\"", "got ''"},
      {"[[host]]\nname = \"a\\u001b\"", "got 'a?'"},
      {entry("from = \"other.xml\""), "inventory f.toml (line 3, column 8): cannot read other.xml"},
      {entry("gpus = \"64xV100-16GB\"\ncount = 100000"),
       "expected a fleet that fits in a gigabyte"},
      {cat("a", std::string(20, '.')),
       "expected plain keys, got too many dots (line 1, column 10)"},
      {"name = \"\"\"\nx\"\"\"", "expected text on one line"},
      {cat("x = ", std::string(3000, '[')), "expected TOML"},
      {std::string(70'000, 'x'), "lines up to 65536 bytes"},
      {std::string(2'000'001, '\n'), "at most 2000000 lines"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_THAT(fleet_error(text), HasSubstr(expected)) << text.substr(0, 100);
}

}  // namespace
}  // namespace muster
