#include "muster/device/probe.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "muster/base/error.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

ProbeOptions without_driver() {
  ProbeOptions options;
  options.nvml.driver_files = {"/nowhere"};
  return options;
}

std::string error_of(const ProbeOptions& options) {
  try {
    probe_this_machine(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Probe, MachineWithoutGpus) {
  const ScopedEnv slots("MUSTER_CPU_SLOTS", nullptr);
  const ScopedEnv library("MUSTER_NVML_LIBRARY", nullptr);
  const Inventory inventory = probe_this_machine(without_driver());
  ASSERT_EQ(inventory.hosts.size(), 1);
  const Host& host = inventory.hosts[0];
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
  EXPECT_EQ(host.name, name);
  EXPECT_GE(host.num_cores, 1);
  EXPECT_EQ(host.cpu_slots, 2);
  EXPECT_THAT(host.gpus, testing::IsEmpty());
  EXPECT_THAT(host.gpu_note, HasSubstr("no NVIDIA driver"));
  EXPECT_FALSE(inventory.simulated);
  EXPECT_EQ(inventory.source, "this machine");
}

TEST(Probe, GpusOfTheDriver) {
  const ScopedEnv machine("FAKE_NVML", "version=570.1|uuid=GPU-1,name=A|uuid=GPU-2,name=B");
  ProbeOptions options;
  options.nvml.library = FAKE_NVML_LIBRARY;
  const Inventory inventory = probe_this_machine(options);
  EXPECT_EQ(inventory.hosts[0].gpus.size(), 2);
  EXPECT_EQ(inventory.hosts[0].driver_version, "570.1");
  EXPECT_EQ(inventory.hosts[0].gpu_note, "");
  options.gpus = false;
  EXPECT_THAT(probe_this_machine(options).hosts[0].gpus, testing::IsEmpty());
}

TEST(Probe, CpuSlotsByOptionThenEnvironment) {
  const ScopedEnv slots("MUSTER_CPU_SLOTS", "5");
  ProbeOptions options = without_driver();
  EXPECT_EQ(probe_this_machine(options).hosts[0].cpu_slots, 5);
  options.cpu_slots = 3;
  EXPECT_EQ(probe_this_machine(options).hosts[0].cpu_slots, 3);
}

TEST(Probe, BadCpuSlotsAreErrors) {
  ProbeOptions options = without_driver();
  for (const char* const bad : {"0", "-1", "65537"}) {
    const ScopedEnv slots("MUSTER_CPU_SLOTS", bad);
    EXPECT_THAT(error_of(options), HasSubstr("in MUSTER_CPU_SLOTS, got " + std::string(bad)));
  }
  for (const char* const bad : {"two", "1.5", "3x"}) {
    const ScopedEnv slots("MUSTER_CPU_SLOTS", bad);
    EXPECT_THAT(error_of(options), HasSubstr("expected an integer in MUSTER_CPU_SLOTS"));
  }
  options.cpu_slots = -2;
  EXPECT_THAT(error_of(options), HasSubstr("in --cpu-slots, got -2"));
}

}  // namespace
}  // namespace muster
