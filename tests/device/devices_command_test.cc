#include <gmock/gmock.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/cli/commands.h"
#include "muster/cli/devices_text.h"
#include "muster/cli/watch.h"
#include "muster/device/inventory_json.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/lease.h"
#include "muster/placement/plan_json.h"
#include "tests/device/pci_machine.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

// Runs `muster <command>` in this process; what it printed.
std::string run(const std::string& command) {
  CLI::App app("muster");
  add_devices(app);
  testing::internal::CaptureStdout();
  try {
    app.parse(command);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
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
GPU  UUID      PCI           model      memory used / total  util  temp  power  ECC   cc  NUMA  near CPUs  health       processes
  0  GPU-1111  0000:3b:00.0  Test 80GB  40.0 GiB / 80.0 GiB   7 %  41 C  100 W    -  9.0     0  -          ok           11 12 13 14 and 1 more
  1  -         -             -                            -     -     -      -    -    -     -  -          GPU is lost  -
CPU: 16 cores, 2 slots (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)

host plain
no GPU: no driver
CPU: 1 core, 1 slot (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)
)");
}

// Two linked GPUs, one of them split, a network card, two sockets.
Host full_host() {
  Host host;
  host.name = "big";
  host.num_cores = 8;
  host.gpus.resize(2);
  host.gpus[0] = {.index = {0},
                  .uuid = {"GPU-a"},
                  .model = "M",
                  .power_watts = 99.6,
                  .power_limit_watts = 400,
                  .ecc_uncorrected_errors = 0,
                  .near_cpus = "0-3"};
  host.gpus[1] = {.index = {1}, .uuid = {"GPU-b"}, .model = "M", .mig_enabled = true};
  host.gpus[1].mig = {{.uuid = {"MIG-1"}, .profile = "1g.10gb", .memory_total_bytes = 10ULL << 30},
                      {}};
  host.nics = {{.name = "mlx5_0", .pci = {"0000:05:00.0"}}};
  host.gpu_links = {{{LinkKind::self}, {LinkKind::nvlink, 12}},
                    {{LinkKind::nvlink, 12}, {LinkKind::self}}};
  host.nic_links = {{{LinkKind::pix}}, {{LinkKind::sys}}};
  host.cores = {{{0, 4}, 0, 0, 0}, {{1, 5}, 0, 0, 0}, {{2, 6}, 1, 1, 1}, {{3, 7}, 1, 1, 1}};
  return host;
}

TEST(DevicesText, InstancesLinksAndSockets) {
  EXPECT_EQ(devices_text({.hosts = {full_host()}}), R"(host big
GPU  UUID     PCI  model          memory used / total  util  temp        power  ECC  cc  NUMA  near CPUs  health  processes
  0  GPU-a    -    M                                -     -     -  100 / 400 W    0   -     -  0-3        ok      -
  1  GPU-b    -    M                                -     -     -            -    -   -     -  -          ok      -
       MIG-1         MIG 1g.10gb             10.0 GiB
       -             MIG -                          -

links
      GPU0  GPU1  NIC0
GPU0  X     NV12  PIX
GPU1  NV12  X     SYS
  NIC0 mlx5_0 0000:05:00.0
  X     the device itself
  NV#   NVLinks, as many as the number says, straight or through switches
  PIX   at most one PCIe switch between them
  SYS   across NUMA nodes

CPU: 8 cores, 2 slots (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)
     4 physical cores with 8 threads on 2 sockets; NUMA node 0: CPUs 0-1,4-5; NUMA node 1: CPUs 2-3,6-7
)");
}

TEST(DevicesText, LeasesHaveAColumn) {
  const std::string text =
      devices_text({.hosts = {full_host()}},
                   {.leases = true, .holders = {{"GPU-a", "job 7"}, {"MIG-1", "job 8"}}});
  EXPECT_THAT(text, HasSubstr("processes  leased by\n"));
  EXPECT_THAT(text, HasSubstr("-          job 7\n"));
  EXPECT_THAT(text, HasSubstr("job 8\n"));
}

TEST(DevicesText, HostileNamesDoNotReachTheTerminal) {
  Host host = full_host();
  host.name = host.gpus[0].model = host.nics[0].name = host.driver_version = "\x1b[2Jx";
  EXPECT_THAT(devices_text({.source = "\x1b", .simulated = true, .hosts = {host}}),
              Not(HasSubstr("\x1b")));
}

TEST(DevicesCommand, ShowsWhoHoldsALease) {
  const ScratchFolder folder;
  const ScopedEnv runtime("MUSTER_RUNTIME_DIR", folder.path().c_str());
  const ScopedEnv library("MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY);
  const ScopedEnv machine("FAKE_NVML", "version=570.1|uuid=GPU-7777,name=Test");
  EXPECT_THAT(run("devices"), Not(HasSubstr("job j42")));
  const auto lease =
      LeaseFolder().try_take({"GPU-7777"}, kWholeGpu, {.job = "j42", .program = "train"});
  ASSERT_TRUE(lease);
  EXPECT_THAT(run("devices"), HasSubstr("j42"));
}

TEST(DevicesCommand, AnotherMachinesSysfs) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", nullptr);
  const ScratchFolder root;
  add_kfd_node(
      root, 1, 1, {{"simd_count", 1}, {"unique_id", 0xabc}, {"gfx_target_version", 90402}});
  root.write("sys/module/amdgpu/version", "6.7.0\n");
  const std::string text = run("devices --sysroot " + root.path());
  EXPECT_THAT(text, HasSubstr(", amdgpu driver 6.7.0\n"));
  EXPECT_THAT(text, HasSubstr("GPU-0000000000000abc"));
  EXPECT_THAT(text, HasSubstr("gfx942"));
}

TEST(DevicesCommand, OneHostOfMany) {
  const ScratchFolder folder;
  const std::string path = folder.write("box.json", kBox);
  EXPECT_THAT(run("devices --host plain --inventory " + path), Not(HasSubstr("host box")));
  EXPECT_THROW(run("devices --host other --inventory " + path), Error);
}

TEST(DevicesCommand, WatchPrintsBlocks) {
  const ScratchFolder folder;
  const std::string path = folder.write("box.json", kBox);
  const std::string once = run("devices --inventory " + path);
  EXPECT_EQ(run("devices --watch=0.001s --count 3 --inventory " + path),
            once + "----\n" + once + "----\n" + once);
  const std::string json = run("devices --json --inventory " + path);
  EXPECT_EQ(run("devices --json --count 2 --watch 1ms --inventory " + path), json + json);
  EXPECT_THROW(run("devices --count 2"), CLI::ParseError);
  EXPECT_THROW(run("devices --watch=0 --count 1"), Error);
  EXPECT_THROW(run("devices --watch=soon --count 1"), Error);
}

TEST(Watch, InterruptEndsIt) {
  int calls = 0;
  std::string text = "x\n";
  const ScratchFolder folder;
  const Fd out(::open((folder.path() + "/out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  watch(out.get(),
        [&] {
          if (++calls == 3)
            pthread_kill(pthread_self(), SIGINT);  // as Ctrl-C: seen at the next wait
          return text;
        },
        {.interval = std::chrono::milliseconds(1)});
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(read_file(folder.path() + "/out"), "x\n----\nx\n----\nx\n");
}

TEST(Watch, FitsTheTerminal) {
  EXPECT_EQ(fit_to_terminal("abcdef\nü€xyz\nlast\n", 2, 3), "abc\nü€x\n");
  EXPECT_EQ(fit_to_terminal("abcdef\n", 0, 0), "abcdef\n");
}

TEST(DevicesCommand, DrawsAPicture) {
  const ScratchFolder folder;
  const std::string box = folder.write("box.json", kBox);
  const std::string svg = folder.path() + "/box.svg";
  EXPECT_EQ(run("devices --inventory " + box + " --svg " + svg), "");
  const std::string plain = read_file(svg);
  EXPECT_THAT(plain, HasSubstr("<svg"));
  Plan plan{.policy = "sequential"};
  plan.ranks = {
      {.host = "box",
       .device = {
           .kind = DeviceAssignment::Kind::gpu, .uuid = {"GPU-1111"}, .model = "Test 80GB"}}};
  const std::string plan_file = folder.write("plan.json", plan_to_json(plan));
  run("devices --inventory " + box + " --plan " + plan_file + " --svg " + svg);
  EXPECT_NE(read_file(svg), plain);
  EXPECT_THROW(run("devices --plan " + plan_file), CLI::ParseError);
}

TEST(DevicesCommand, DrawsNoPlanOfAnotherMachine) {
  const ScratchFolder folder;
  const std::string box = folder.write("box.json", kBox);
  const auto error_of = [&](const std::string& host, const std::string& uuid) {
    Plan plan{.policy = "sequential"};
    plan.ranks = {{.host = host,
                   .device = {.kind = DeviceAssignment::Kind::gpu, .uuid = {uuid}, .model = "M"}}};
    const std::string file = folder.write("plan.json", plan_to_json(plan));
    try {
      run("devices --inventory " + box + " --plan " + file + " --svg " + folder.path() + "/a.svg");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_of("box", "GPU-1111"), "");
  EXPECT_THAT(error_of("box", "GPU-2222"), HasSubstr("got rank 0 on GPU-2222 of host box"));
  EXPECT_THAT(error_of("another", "GPU-1111"), HasSubstr("got rank 0 on GPU-1111 of host another"));
}

TEST(DevicesCommand, JsonIsReadBack) {
  const ScratchFolder folder;
  const std::string path = folder.write("box.json", kBox);
  EXPECT_EQ(inventory_from_json(run("devices --json --inventory " + path), path),
            read_inventory(path));
}

TEST(DevicesCommand, ThisMachineThroughNvml) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY);
  const ScopedEnv machine("FAKE_NVML",
                          "version=570.1|uuid=GPU-7777,name=Test,util=55,temp=60|handle=15");
  const std::string text = run("devices");
  EXPECT_THAT(text, HasSubstr("GPU-7777"));
  EXPECT_THAT(text, HasSubstr("55 %"));
  EXPECT_THAT(text, HasSubstr("GPU is lost"));
  const auto inventory = inventory_from_json(run("devices --json"), "it");
  EXPECT_EQ(inventory.hosts.at(0).gpus.at(0).temperature_celsius, 60);
}

TEST(DevicesCommand, SaysWhyThereIsNoGpu) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1");
  EXPECT_THAT(run("devices"),
              HasSubstr("\nno GPU: NVML: cannot load /nowhere/libnvidia-ml.so.1: "));
}

TEST(DevicesCommand, ErrorsLeaveAsTheyAre) {
  const ScratchFolder folder;
  EXPECT_THROW(run("devices --inventory " + folder.path() + "/absent.json"), Error);
  EXPECT_THROW(run("devices --colour"), CLI::ParseError);
}

TEST(DevicesCommand, HelpHasExamples) {
  CLI::App app("muster");
  add_devices(app);
  EXPECT_THAT(app.get_subcommand("devices")->help(),
              HasSubstr("muster devices --inventory box.json"));
}

}  // namespace
}  // namespace muster
