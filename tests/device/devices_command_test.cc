#include <gmock/gmock.h>

#include <CLI/CLI.hpp>

#include "muster/base/error.h"
#include "muster/cli/devices.h"
#include "muster/device/inventory_json.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

// Runs `muster <command>` in this process; what it printed.
std::string run(const std::string& command) {
  CLI::App app("muster");
  int exit_code = -1;
  add_devices(app, &exit_code);
  testing::internal::CaptureStdout();
  try {
    app.parse(command);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  EXPECT_EQ(exit_code, 0);
  return testing::internal::GetCapturedStdout();
}

constexpr const char* kBox = R"({"schema":"muster.devices/1","hosts":[{"name":"box","num_cores":16,
  "driver_version":"570.1","gpus":[
  {"index":0,"uuid":"GPU-1111","pci":"0000:3b:00.0","model":"Test 80GB","memory_total_bytes":85899345920,
   "memory_free_bytes":42949672960,"utilization_percent":7,"temperature_celsius":41,"power_watts":99.7,
   "compute_capability":"9.0","numa_node":0,"processes":[{"pid":11},{"pid":12},{"pid":13},{"pid":14},{"pid":15}]},
  {"index":1,"model":"","health":"GPU is lost"}]},
  {"name":"plain","num_cores":1,"cpu_slots":1,"gpu_note":"no driver"}]})";

TEST(DevicesCommand, TableOfAFile) {
  const ScratchFolder folder;
  const std::string path = folder.write("box.json", kBox);
  EXPECT_EQ(run("devices --inventory " + path), "from " + path + ", not this machine\n" + R"(
host box, NVIDIA driver 570.1
GPU  UUID      PCI           model      memory used / total  util  temp  power   cc  NUMA  health       processes
  0  GPU-1111  0000:3b:00.0  Test 80GB  40.0 GiB / 80.0 GiB   7 %  41 C  100 W  9.0     0  ok           11 12 13 14 and 1 more
  1  -         -             -                            -     -     -      -    -     -  GPU is lost  -
CPU: 16 cores, 2 slots (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)

host plain
no GPU: no driver
CPU: 1 core, 1 slot (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)
)");
}

TEST(DevicesCommand, JsonIsReadBack) {
  const ScratchFolder folder;
  const std::string path = folder.write("box.json", kBox);
  EXPECT_EQ(inventory_from_json(run("devices --json --inventory " + path), path), read_inventory(path));
}

TEST(DevicesCommand, ThisMachineThroughNvml) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY);
  const ScopedEnv machine("FAKE_NVML", "version=570.1|uuid=GPU-7777,name=Test,util=55,temp=60|handle=15");
  const std::string text = run("devices");
  EXPECT_THAT(text, HasSubstr("GPU-7777"));
  EXPECT_THAT(text, HasSubstr("55 %"));
  EXPECT_THAT(text, HasSubstr("GPU is lost"));
  const auto inventory = inventory_from_json(run("devices --json"), "it");
  EXPECT_EQ(inventory.hosts.at(0).gpus.at(0).temperature_celsius, 60);
}

TEST(DevicesCommand, SaysWhyThereIsNoGpu) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1");
  EXPECT_THAT(run("devices"), HasSubstr("\nno GPU: NVML: cannot load /nowhere/libnvidia-ml.so.1: "));
}

TEST(DevicesCommand, ErrorsLeaveAsTheyAre) {
  const ScratchFolder folder;
  EXPECT_THROW(run("devices --inventory " + folder.path() + "/absent.json"), Error);
  EXPECT_THROW(run("devices --colour"), CLI::ParseError);
}

TEST(DevicesCommand, HelpHasExamples) {
  CLI::App app("muster");
  int exit_code = 0;
  add_devices(app, &exit_code);
  EXPECT_THAT(app.get_subcommand("devices")->help(), HasSubstr("muster devices --inventory box.json"));
}

}  // namespace
}  // namespace muster
