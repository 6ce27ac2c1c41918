#include "muster/cli/doctor.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

// A machine where all is well, in a folder; a test spoils one thing of it.
class DoctorTest : public testing::Test {
 protected:
  DoctorTest() {
    facts_.root = root_.path();
    facts_.user = ::geteuid();
    facts_.host.name = "box";
    facts_.host.driver_version = "570.86.15";
    for (int i = 0; i < 2; ++i) {
      Gpu gpu;
      gpu.index.value = i;
      gpu.uuid.value = cat("GPU-", i);
      gpu.model = "Test";
      gpu.memory_total_bytes = gpu.memory_free_bytes = uint64_t{80} << 30;
      facts_.host.gpus.push_back(gpu);
    }
    const Link self{LinkKind::self, 0};
    const Link link{LinkKind::nvlink, 4};
    facts_.host.gpu_links = {{self, link}, {link, self}};
    facts_.host_addresses = {"10.0.0.5"};
    facts_.shm_total_bytes = facts_.shm_free_bytes = uint64_t{8} << 30;
    facts_.shm_writable = true;
    facts_.lease_folder = "/run/user/1/muster";
    facts_.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
    root_.write("proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build  "
                "(1)\nGCC version: 12.2\n");
    limits("1048576", "1048576", "unlimited");
    root_.write("proc/self/cgroup", "0::/job\n");
    root_.write("sys/fs/cgroup/job/cgroup.controllers", "cpu memory pids\n");
    root_.write("sys/fs/cgroup/job/cgroup.procs", "");
    root_.write("sys/class/net/eth0/mtu", "1500");
    root_.write("sys/class/net/lo/mtu", "65536");
    root_.write("opt/venv/lib/python3.11/site-packages/torch/version.py",
                "__version__ = '2.15.0+cu130'\ndebug = False\n");
    facts_.environment["VIRTUAL_ENV"] = root_.path() + "/opt/venv";
  }

  void limits(const std::string& files, const std::string& processes, const std::string& locked) {
    root_.write("proc/self/limits",
                cat("Limit                     Soft Limit           Hard Limit           Units\n",
                    "Max processes             ",
                    processes,
                    "    1048576     processes\n",
                    "Max open files            ",
                    files,
                    "    1048576     files\n",
                    "Max locked memory         ",
                    locked,
                    "    unlimited     bytes\n"));
  }

  void process(int pid,
               int parent,
               const std::string& name,
               const std::string& environment,
               const std::string& command = "") {
    const std::string folder = cat("proc/", pid, "/");
    root_.write(folder + "status", cat("Name:\t", name, "\nState:\tS\nPPid:\t", parent, "\n"));
    root_.write(folder + "comm", name + "\n");
    root_.write(folder + "environ", environment);
    root_.write(folder + "cmdline", command);
  }

  Gpu& gpu(size_t position) { return facts_.host.gpus.at(position); }

  ScratchFolder root_;
  DoctorFacts facts_;
};

#define EXPECT_RESULT(result, expected, part)       \
  do {                                              \
    const CheckResult got = (result);               \
    EXPECT_STREQ(to_string(got.status), #expected); \
    EXPECT_THAT(got.text, HasSubstr(part));         \
  } while (false)

TEST_F(DoctorTest, AHealthyMachine) {
  for (const auto& [name, result] : run_checks(facts_)) {
    const bool good = result.status == kOk || (name == "route to the master");
    EXPECT_TRUE(good) << name << ": " << result.text;
    EXPECT_EQ(result.fix, "") << name;
  }
  EXPECT_EQ(doctor_exit_code(run_checks(facts_)), 0);
}

TEST_F(DoctorTest, EveryProblemSaysWhatToDo) {
  facts_.probe_error = "MUSTER_CPU_SLOTS: bad";
  gpu(0).health = "GPU is lost";
  facts_.resolve_error = "Name or service not known";
  facts_.shm_free_bytes = 1;
  facts_.port_error = "Cannot assign requested address";
  facts_.lease_error = "lease: …";
  facts_.python_error = "import torch failed";
  limits("1024", "100", "65536");
  for (const auto& [name, result] : run_checks(facts_)) {
    const bool bad = result.status == kWarn || result.status == kFail;
    EXPECT_EQ(bad, !result.fix.empty()) << name;
  }
  EXPECT_EQ(doctor_exit_code(run_checks(facts_)), 1);
}

TEST_F(DoctorTest, Driver) {
  EXPECT_RESULT(check_driver(facts_), ok, "NVIDIA 570.86.15, 2 GPUs");
  facts_.host.driver_version = "575.1";
  EXPECT_RESULT(check_driver(facts_), fail, "kernel module 570.86.15, library 575.1");
  facts_.host.gpus.clear();
  facts_.host.driver_version.clear();
  facts_.host.gpu_note = "NVML: no permission";
  EXPECT_RESULT(check_driver(facts_), fail, "570.86.15 is loaded, but: NVML: no permission");
  std::filesystem::remove_all(root_.path() + "/proc/driver");
  EXPECT_RESULT(check_driver(facts_), skipped, "no GPU: NVML: no permission");
  root_.write("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n");
  root_.write("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n");
  root_.write("sys/bus/pci/devices/0000:3b:00.1/vendor", "0x10de\n");  // its audio part
  root_.write("sys/bus/pci/devices/0000:3b:00.1/class", "0x040300\n");
  EXPECT_RESULT(check_driver(facts_), warn, "NVIDIA GPU at 0000:3b:00.0, but");
  facts_.probe_error = "MUSTER_CPU_SLOTS";
  EXPECT_RESULT(check_driver(facts_), fail, "MUSTER_CPU_SLOTS");
}

TEST_F(DoctorTest, GpuHealthAndUse) {
  gpu(0).ecc_uncorrected_errors = 3;
  EXPECT_RESULT(check_gpu_health(facts_), warn, "GPU 0: 3 uncorrected");
  gpu(1).health = "GPU is lost";
  EXPECT_RESULT(check_gpu_health(facts_), fail, "GPU 1: GPU is lost");
  process(4711, 1, "train", "");
  gpu(1).processes = {{4711, 5}, {4712, 5}};
  gpu(0).memory_free_bytes = gpu(0).memory_total_bytes / 2;
  EXPECT_RESULT(check_gpu_busy(facts_),
                warn,
                "GPU 0: 40.0 GiB used by processes not shown; GPU 1: 4711 (train), 4712");
  facts_.host.gpus.clear();
  EXPECT_RESULT(check_gpu_busy(facts_), skipped, "no GPU");
}

TEST_F(DoctorTest, Mig) {
  gpu(1).mig_enabled = true;
  EXPECT_RESULT(check_mig(facts_), warn, "no instance: GPU 1");
  gpu(1).mig.resize(2);
  EXPECT_RESULT(check_mig(facts_), ok, "GPU 1: 2 instances");
}

TEST_F(DoctorTest, PeerAccess) {
  EXPECT_RESULT(check_peer_access(facts_), ok, "links: NV4");
  root_.write("sys/class/iommu/dmar0/x", "");
  EXPECT_RESULT(check_peer_access(facts_), ok, "NV4");  // NVLink does not go through it
  facts_.host.gpu_links[0][1].kind = LinkKind::sys;
  EXPECT_RESULT(check_peer_access(facts_), warn, "IOMMU");
  root_.write("proc/cmdline", "ro quiet iommu=pt\n");
  EXPECT_RESULT(check_peer_access(facts_), ok, "links: SYS");
  facts_.host.gpu_links.clear();
  EXPECT_RESULT(check_peer_access(facts_), warn, "not known");
  facts_.host.gpus.pop_back();
  EXPECT_RESULT(check_peer_access(facts_), skipped, "fewer than two");
}

TEST_F(DoctorTest, DeviceOrderAndVisibleDevices) {
  facts_.environment["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST";
  EXPECT_RESULT(check_device_order(facts_), warn, "FASTEST_FIRST");
  facts_.environment.erase("CUDA_DEVICE_ORDER");
  EXPECT_RESULT(check_device_order(facts_), ok, "unset");
  gpu(1).model = "Other";
  EXPECT_RESULT(check_device_order(facts_), warn, "the GPUs differ");

  EXPECT_RESULT(check_visible_devices(facts_), ok, "every GPU is visible");
  facts_.environment["CUDA_VISIBLE_DEVICES"] = "1";
  EXPECT_RESULT(check_visible_devices(facts_), ok, "'1' shows GPU 1");
  facts_.environment["CUDA_VISIBLE_DEVICES"] = "1,7,0";
  EXPECT_RESULT(check_visible_devices(facts_), warn, "shows GPU 1; ");
  facts_.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_RESULT(check_visible_devices(facts_), warn, "'' shows no GPU");
}

TEST_F(DoctorTest, HostNameAndMaster) {
  EXPECT_RESULT(check_host_name(facts_), ok, "box resolves to 10.0.0.5");
  facts_.host_addresses = {"127.0.1.1", "::1"};
  EXPECT_RESULT(check_host_name(facts_), warn, "127.0.1.1, ::1 (loopback)");
  facts_.host_addresses.push_back("10.0.0.5");
  EXPECT_RESULT(check_host_name(facts_), ok, "10.0.0.5");
  facts_.resolve_error = "Name or service not known";
  EXPECT_RESULT(check_host_name(facts_), warn, "does not resolve");

  EXPECT_RESULT(check_master_route(facts_), skipped, "--master");
  facts_.master = "node1";
  facts_.master_address = "10.0.0.5";
  facts_.master_interface = "eth0";
  EXPECT_RESULT(check_master_route(facts_), ok, "to node1 from 10.0.0.5 (eth0)");
  facts_.master_address = "127.0.0.1";
  EXPECT_RESULT(check_master_route(facts_), warn, "this host itself");
  facts_.master = "localhost";
  EXPECT_RESULT(check_master_route(facts_), ok, "to localhost");
  facts_.master_error = "address: no route";
  EXPECT_RESULT(check_master_route(facts_), fail, "no route");
}

TEST_F(DoctorTest, InterfaceVariables) {
  for (const char* good : {"eth0", "eth", "=eth0", "^docker,lo", "ib,eth", "eth0:5000"}) {
    facts_.environment["NCCL_SOCKET_IFNAME"] = good;
    EXPECT_RESULT(check_interface_variables(facts_), ok, good);
  }
  for (const char* bad : {"ib0", "=eth", "ib,wlan"}) {
    facts_.environment["NCCL_SOCKET_IFNAME"] = bad;
    EXPECT_RESULT(check_interface_variables(facts_), fail, "but there are eth0, lo");
  }
}

TEST_F(DoctorTest, Ports) {
  facts_.master_port_holder = "process 12 (nc)";
  facts_.environment["MASTER_PORT"] = "29500";
  EXPECT_RESULT(check_ports(facts_), warn, "MASTER_PORT=29500 is in use by process 12 (nc)");
  facts_.port_error = "Cannot assign requested address";
  EXPECT_RESULT(check_ports(facts_), fail, "Cannot assign");
}

TEST_F(DoctorTest, SharedMemory) {
  EXPECT_RESULT(check_shared_memory(facts_), ok, "8.0 GiB free of 8.0 GiB");
  facts_.shm_total_bytes = facts_.shm_free_bytes = uint64_t{64} << 20;
  EXPECT_RESULT(check_shared_memory(facts_), warn, "64.0 MiB");
  EXPECT_THAT(check_shared_memory(facts_).fix, HasSubstr("--shm-size"));
  facts_.shm_free_bytes = 0;
  EXPECT_RESULT(check_shared_memory(facts_), fail, "0 B");
  facts_.shm_writable = false;
  EXPECT_RESULT(check_shared_memory(facts_), fail, "cannot write");
  facts_.shm_total_bytes.reset();
  EXPECT_RESULT(check_shared_memory(facts_), fail, "none");
}

TEST_F(DoctorTest, Limits) {
  limits("1024", "200", "65536");
  EXPECT_RESULT(check_open_files(facts_), warn, "at most 1024");
  EXPECT_THAT(check_open_files(facts_).fix, HasSubstr("ulimit -n 4096"));
  EXPECT_RESULT(check_processes(facts_), warn, "at most 200");
  EXPECT_RESULT(check_locked_memory(facts_), ok, "64.0 KiB, enough without an RDMA card");
  root_.write("sys/class/infiniband/mlx5_0/x", "");
  EXPECT_RESULT(check_locked_memory(facts_), warn, "64.0 KiB");
  std::filesystem::remove(root_.path() + "/proc/self/limits");
  EXPECT_RESULT(check_open_files(facts_), skipped, "does not tell");
}

TEST_F(DoctorTest, Cgroup) {
  EXPECT_RESULT(check_cgroup(facts_), ok, "writable; no limits");
  root_.write("sys/fs/cgroup/job/memory.max", "1073741824\n");
  root_.write("sys/fs/cgroup/job/cpu.max", "200000 100000\n");
  EXPECT_RESULT(check_cgroup(facts_), ok, "limits: memory 1.0 GiB, CPU time of 2 cores");
  root_.write("sys/fs/cgroup/job/pids.max", "100\n");
  EXPECT_RESULT(check_cgroup(facts_), warn, "100 processes");
  root_.write("proc/self/cgroup", "12:cpu:/job\n");
  EXPECT_RESULT(check_cgroup(facts_), skipped, "no cgroup v2");
}

TEST_F(DoctorTest, Orphans) {
  const std::string mine("PATH=/bin\0TORCHELASTIC_RUN_ID=j1\0", 33);
  process(1, 0, "systemd", "");
  process(100, 1, "muster", "");      // a launcher that was left alone (nohup)
  process(101, 100, "train", mine);   // its rank
  process(102, 101, "loader", mine);  // and what that started
  EXPECT_RESULT(check_orphans(facts_), ok, "no process");
  process(201, 1, "train", std::string("TORCHELASTIC_RUN_ID=none\0MUSTER_RUN_DIR=/runs/x", 48));
  process(202, 201, "loader", std::string("TORCHELASTIC_RUN_ID=none\0MUSTER_RUN_DIR=/runs/x", 48));
  EXPECT_RESULT(
      check_orphans(facts_), warn, "left-over processes of job /runs/x: 201 (train), 202 (loader)");
  EXPECT_EQ(check_orphans(facts_).fix, "kill 201 202");
  facts_.user += 1;
  EXPECT_RESULT(check_orphans(facts_), ok, "no process");
}

TEST_F(DoctorTest, OrphansInAContainer) {
  const std::string mine = "MUSTER_RUN_DIR=/runs/x";
  process(7, 1, "train", mine);
  process(1, 0, "muster", "", "muster run train");
  EXPECT_RESULT(check_orphans(facts_), ok, "no process");  // process 1 is the launcher
  process(1, 0, "train", "", "./train");
  EXPECT_RESULT(check_orphans(facts_), ok, "no process");  // it starts its own ranks
  process(1, 0, "bash", "", "bash");
  EXPECT_RESULT(check_orphans(facts_), warn, "7 (train)");
}

TEST_F(DoctorTest, Leases) {
  EXPECT_RESULT(check_leases(facts_), ok, "none held (/run/user/1/muster)");
  facts_.leases[gpu(1).uuid] = {
      {.units = 1000, .note = LeaseNote{.pid = 12, .job = "j"}, .alive = true}};
  EXPECT_RESULT(check_leases(facts_), ok, "GPU 1: job j (pid 12)");
  facts_.leases[gpu(1).uuid][0].alive = false;
  EXPECT_RESULT(check_leases(facts_), warn, "which has ended");
  facts_.lease_error = "lease: expected a folder";
  EXPECT_RESULT(check_leases(facts_), fail, "expected a folder");
}

TEST_F(DoctorTest, Torch) {
  EXPECT_RESULT(
      check_torch(facts_), ok, "2.15.0+cu130 (" + root_.path() + "/opt/venv/lib/python3.11");
  root_.write("libtorch/build-version", "2.9.1+cpu\n");
  facts_.environment["TORCH"] = root_.path() + "/libtorch";
  EXPECT_RESULT(check_torch(facts_), warn, "2.9.1+cpu");
  facts_.environment.erase("TORCH");
  facts_.environment.erase("VIRTUAL_ENV");
  EXPECT_RESULT(check_torch(facts_), skipped, "--python");
  root_.write("usr/lib/python3.12/dist-packages/torch/version.py", "__version__ = '2.12.0'\n");
  facts_.environment["PATH"] = "/usr/bin:/bin";
  EXPECT_RESULT(check_torch(facts_), ok, "2.12.0");
  root_.write("opt/muster/lib/muster/libtorch/torch/include/torch/headeronly/version.h",
              "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 14\n#define "
              "TORCH_VERSION_PATCH 1\n");
  facts_.environment["PATH"] = "/opt/muster/bin:/usr/bin";
  EXPECT_RESULT(check_torch(facts_), ok, "2.14.1");
  facts_.python_answer = "2.11.0 /x y/torch";
  EXPECT_RESULT(check_torch(facts_), ok, "2.11.0 (/x y/torch)");
  facts_.python_answer = "3.0";
  EXPECT_RESULT(check_torch(facts_), warn, "3.0");
  facts_.python_error = "no answer";
  EXPECT_RESULT(check_torch(facts_), fail, "no answer");
}

TEST_F(DoctorTest, LinesAndJson) {
  facts_.host.name = "box\x1b[2J";
  facts_.resolve_error = "bad\nname \xff";
  const auto results = run_checks(facts_);
  const std::string text = doctor_text(results);
  EXPECT_THAT(text, HasSubstr("ok       driver                NVIDIA 570.86.15, 2 GPUs\n"));
  EXPECT_THAT(text, HasSubstr("warn     host name             box?[2J does not resolve: bad?name"));
  EXPECT_THAT(text, HasSubstr("; to do: enter it in /etc/hosts"));
  EXPECT_THAT(text, HasSubstr(" ok, 1 warning, 0 failures, 1 skipped\n"));
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), results.size() + 1);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  const auto json = nlohmann::json::parse(doctor_json(results, facts_.host.name));
  EXPECT_EQ(json.at("schema"), "muster.doctor/1");
  EXPECT_EQ(json.at("ok"), true);
  EXPECT_EQ(json.at("checks").size(), results.size());
  EXPECT_EQ(json.at("checks").at(0).at("status"), "ok");
}

// Whatever this machine is, the command answers with a line a check.
TEST(DoctorCommand, ThisMachine) {
  CLI::App app("muster");
  int exit_code = -1;
  add_doctor(app, &exit_code);
  testing::internal::CaptureStdout();
  app.parse("doctor --master localhost");
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(exit_code == 0 || exit_code == 1) << text;
  for (const Check& check : doctor_checks())
    EXPECT_THAT(text, HasSubstr(cat(" ", check.name, "  ")));
  EXPECT_THAT(text, HasSubstr("to localhost from 127.0.0.1 (lo)"));
  EXPECT_THAT(app.get_subcommand("doctor")->help(), HasSubstr("muster doctor --master node1"));
}

TEST(DoctorCommand, AsksAPython) {
  const ScratchFolder folder;
  const std::string good = folder.write("good", "#!/bin/sh\necho 2.15.0 /x/torch\n");
  const std::string bad = folder.write("bad", "#!/bin/sh\nexit 1\n");
  ::chmod(good.c_str(), 0700);
  ::chmod(bad.c_str(), 0700);
  EXPECT_RESULT(check_torch(look_at_this_machine({.python = good})), ok, "2.15.0 (/x/torch)");
  EXPECT_RESULT(check_torch(look_at_this_machine({.python = bad})), fail, "import torch failed");
  EXPECT_RESULT(
      check_torch(look_at_this_machine({.python = "/nowhere/python"})), fail, "/nowhere/python");
}

}  // namespace
}  // namespace muster
