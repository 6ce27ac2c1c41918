// GPUs that NVLink-C2C joins to their CPU, with memory of their own (GH200, GB200) and without
// (GB10).
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

#include "muster/base/strings.h"
#include "muster/cli/devices_text.h"
#include "muster/device/inventory.h"
#include "muster/device/inventory_json.h"
#include "muster/device/nvml.h"
#include "muster/device/read_inventory.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

NvmlReport probe_coherent(const char* machine) {
  const ScopedEnv env("FAKE_NVML", machine);
  return probe_nvml({.library = FAKE_NVML_LIBRARY});
}

TEST(CoherentGpus, NvmlTellsOfC2c) {
  const auto gh200 = probe_coherent(
      "version=570.1|uuid=GPU-1,name=NVIDIA GH200 "
      "480GB,total=102625181696,free=102625181696,c2c=1");
  EXPECT_TRUE(gh200.gpus.at(0).c2c);
  const auto h100 = probe_coherent("version=570.1|uuid=GPU-1,name=H100,total=1,free=1,c2c=0");
  EXPECT_FALSE(h100.gpus.at(0).c2c);
  const auto older = probe_coherent("version=525.1|uuid=GPU-1,name=A100,total=1,free=1");
  EXPECT_FALSE(older.gpus.at(0).c2c);
}

TEST(CoherentGpus, MemoryThatTheDriverDoesNotTellIsNotZero) {
  const auto report = probe_coherent("version=580.1|uuid=GPU-1,name=NVIDIA GB10,c2c=1,cc=12.1");
  EXPECT_EQ(report.gpus.at(0).health, kHealthy);
  const Inventory inventory{.hosts = {{.name = "gb10", .gpus = report.gpus}}};
  const auto json = nlohmann::json::parse(inventory_to_json(inventory));
  const auto& gpu = json["hosts"][0]["gpus"][0];
  EXPECT_TRUE(gpu["memory_total_bytes"].is_null()) << gpu;
  EXPECT_TRUE(gpu["memory_free_bytes"].is_null()) << gpu;
  EXPECT_EQ(gpu["c2c"], true);
}

TEST(CoherentGpus, DevicesShowsThem) {
  const std::string folder = cat(MUSTER_SOURCE_DIR, "/tests/data/machines/");
  const std::string gb10 = devices_text(read_inventory(folder + "gb10.json"));
  EXPECT_THAT(gb10,
              HasSubstr("C2C: NVLink-C2C joins GPU 0 to its CPU: both reach all of their "
                        "memory; GPU 0 told no memory but the machine's\n"));
  EXPECT_THAT(gb10, Not(HasSubstr("0 B")));
  const std::string tray = devices_text(read_inventory(folder + "gb200-nvl72-tray.json"));
  EXPECT_THAT(tray,
              HasSubstr("C2C: NVLink-C2C joins GPU 0, GPU 1, GPU 2, GPU 3, each to its CPU: "
                        "both reach all of their memory\n"));
}

}  // namespace
}  // namespace muster
