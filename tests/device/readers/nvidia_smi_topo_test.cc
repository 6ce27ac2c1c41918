#include "muster/device/readers/nvidia_smi_topo.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::HasSubstr;

std::string topo_error(const std::string& text) {
  return error_of([&] { nvidia_smi_topo_host(text, "f"); });
}

int links_of(const Host& host, size_t gpu) {
  int sum = 0;
  for (const Link& link : host.gpu_links.at(gpu))
    sum += link.count;
  return sum;
}

TEST(NvidiaSmiTopo, HybridCubeMesh) {
  const Host host = nvidia_smi_topo_host(machine_text("dgx1-v100.txt"), "dgx1-v100.txt");
  EXPECT_EQ(host.name, "dgx1-v100");
  ASSERT_EQ(host.gpus.size(), 8);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(links_of(host, i), 6) << "a V100 has six NVLinks";
  EXPECT_EQ(host.gpu_links[0][3], (Link{LinkKind::nvlink, 2}));
  EXPECT_EQ(host.gpu_links[0][5], (Link{LinkKind::sys, 0}));
  EXPECT_EQ(host.gpus[5].numa_node, 1);
  EXPECT_EQ(host.gpus[5].near_cpus, "20-39,60-79");
  EXPECT_EQ(host.num_cores, 80);
  EXPECT_EQ(host.gpus[5].model, "Tesla V100-SXM2-32GB");
  EXPECT_EQ(host.gpus[5].memory_total_bytes, uint64_t{32} << 30);
  EXPECT_TRUE(host.gpus[5].uuid.value.starts_with("GPU-b86bddd7-"));
  ASSERT_EQ(host.nics.size(), 4);
  EXPECT_EQ(host.nics[2].name, "mlx5_2");
  EXPECT_EQ(host.nic_links[4][2].kind, LinkKind::pix);
  EXPECT_EQ(host.nic_links[4][3].kind, LinkKind::node);
}

TEST(NvidiaSmiTopo, ColumnsSetWithBlanks) {
  const Host host = nvidia_smi_topo_host(machine_text("dgx-a100.txt"), "f");
  ASSERT_EQ(host.gpus.size(), 8);
  EXPECT_EQ(host.gpu_links[7][0], (Link{LinkKind::nvlink, 12}));
  EXPECT_EQ(host.gpus[4].numa_node, 7);
  EXPECT_EQ(host.gpus[4].near_cpus, "112-127,240-255");
  EXPECT_EQ(host.nics.at(7).name, "mlx5_7");
  EXPECT_EQ(host.nic_links[7][7].kind, LinkKind::pxb);
  EXPECT_TRUE(host.gpus[0].uuid.value.starts_with("GPU-")) << "invented";
}

TEST(NvidiaSmiTopo, UnderlinedHeaderAndEmptyColumns) {
  const Host tabs = nvidia_smi_topo_host(
      "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\r\n"
      "GPU0\t X \tNV4\t0-7\t0\t\tN/A\r\nGPU1\tNV4\t X \t\t1\t\tN/A\r\n",
      "f");
  EXPECT_EQ(tabs.gpus[0].near_cpus, "0-7");
  EXPECT_EQ(tabs.gpus[1].near_cpus, "");
  EXPECT_EQ(tabs.gpus[1].numa_node, 1);
  const Host blanks = nvidia_smi_topo_host(
      "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
      "GPU0     X      SOC     0-7             0               N/A\n"
      "GPU1    SOC      X                      1               N/A\n",
      "f");
  EXPECT_EQ(blanks.gpus[1].near_cpus, "");
  EXPECT_EQ(blanks.gpus[1].numa_node, 1);
  EXPECT_EQ(blanks.gpu_links[0][1].kind, LinkKind::sys) << "SOC is what old drivers said";
}

TEST(NvidiaSmiTopo, SeveralNumaNodesNearAGpu) {
  const Host host = nvidia_smi_topo_host(
      "        GPU0    CPU Affinity    NUMA Affinity           GPU NUMA ID\n"
      "GPU0     X      72-143  1,19-25,27-33           18\n",
      "f");
  EXPECT_EQ(host.gpus[0].near_cpus, "72-143");
  EXPECT_EQ(host.gpus[0].numa_node, 1);
}

// As virtual machines have it: the firmware names no node.
TEST(NvidiaSmiTopo, NoNumaNode) {
  for (const char* const node : {"-1", "N/A", ""}) {
    const Host host = nvidia_smi_topo_host(
        cat("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-31\t",
            node,
            "\nGPU1\tPHB\t X \t0-31\t",
            node,
            "\n"),
        "f");
    EXPECT_EQ(host.gpus.at(1).numa_node, std::nullopt) << node;
    EXPECT_EQ(host.gpus[1].near_cpus, "0-31") << node;
  }
}

// As PyTorch's collect_env prints them, in every bug report.
TEST(NvidiaSmiTopo, NamesWithoutUuids) {
  const Host host = nvidia_smi_topo_host(
      "GPU models and configuration: \nGPU 0: NVIDIA A100-SXM-64GB\nGPU 1: NVIDIA Something "
      "Else\n\n"
      "Nvidia driver version: 530.30.02\n\nGPU Topology:\n"
      "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
      "GPU0\t X \tNV4\t0-31\t0\t\tN/A\nGPU1\tNV4\t X \t0-31\t0\t\tN/A\n",
      "f");
  EXPECT_EQ(host.gpus.at(0).model, "NVIDIA A100-SXM-64GB");
  EXPECT_EQ(host.gpus[0].memory_total_bytes, uint64_t{64} << 30);
  EXPECT_TRUE(host.gpus[0].uuid.value.starts_with("GPU-")) << "invented";
  EXPECT_EQ(host.gpus.at(1).model, "NVIDIA Something Else");
  EXPECT_EQ(host.gpus[1].memory_total_bytes, 0) << "not known";
  EXPECT_THAT(topo_error("\tGPU0\tCPU Affinity\nGPU0\tX\t0\nGPU 0: T4 (UUID: none)\n"),
              HasSubstr("expected (UUID: GPU-"));
}

TEST(NvidiaSmiTopo, MigInstancesOfTheList) {
  const Host host = nvidia_smi_topo_host(
      "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5)\n"
      "  MIG 3g.20gb     Device  0: (UUID: MIG-7)\n"
      "\tGPU0\tCPU Affinity\nGPU0\t X \t0\n",
      "f");
  ASSERT_EQ(host.gpus[0].mig.size(), 1);
  EXPECT_TRUE(host.gpus[0].mig_enabled);
  EXPECT_EQ(
      host.gpus[0].mig[0],
      (MigInstance{
          .uuid = {"MIG-7"}, .profile = "3g.20gb", .memory_total_bytes = uint64_t{20} << 30}));
}

TEST(NvidiaSmiTopo, ErrorsNameThePlace) {
  constexpr const char* kHeader = "\tGPU0\tGPU1\tCPU Affinity\n";
  EXPECT_EQ(topo_error("nothing"),
            "inventory f: expected a header and rows as of nvidia-smi topo -m, got none (line 1, "
            "column 1)");
  EXPECT_EQ(topo_error(cat(kHeader, "GPU0\t X \tNV4\t0\nGPU1\tNV2\t X \t0\n")),
            "inventory f: expected NV4, as in the row of GPU0, got NV2 (line 3, column 6)");
  EXPECT_THAT(topo_error(cat(kHeader, "GPU0\t X \tNV4\t0\n")), HasSubstr("expected 2 rows, got 1"));
  EXPECT_THAT(topo_error(cat(kHeader, "GPU0\t X \n")),
              HasSubstr("expected 2 links after GPU0, got 1"));
  EXPECT_THAT(topo_error(cat(kHeader, "GPU0\t X \tNV9999999999\t0\n")),
              HasSubstr("got NV9999999999 (line 2"));
  EXPECT_THAT(topo_error(cat(kHeader, "GPU0\tNV4\tNV4\t0\n")), HasSubstr("expected X, got NV4"));
  EXPECT_THAT(topo_error(cat(kHeader, "GPU1\t X \tNV4\t0\n")),
              HasSubstr("expected the row of GPU0, got GPU1"));
  EXPECT_THAT(topo_error(cat(kHeader, "GPU0\t X \tNV4\t0-99999999\n")),
              HasSubstr("expected CPUs as in 0-31,64-95"));
  EXPECT_THAT(topo_error("\tGPU0\tGPU0\tCPU Affinity\nGPU0\tX\tNV1\t0\nGPU0\tNV1\tX\t0\n"),
              HasSubstr("index once"));
  EXPECT_THAT(topo_error("GPU0\t X \n"), HasSubstr("a header and rows"));
  EXPECT_THAT(topo_error(cat("\tGPU0\tCPU Affinity\nGPU0\tX\t0\nGPU 7: T4 (UUID: GPU-1)\n")),
              HasSubstr("has a row"));
  EXPECT_THAT(topo_error(cat("\tGPU0\n", std::string(100'000, 'x'))),
              HasSubstr("lines up to 65536 bytes"));
  const std::string one = cat(kHeader, "GPU0\t X \tNV4\t0\nGPU1\tNV4\t X \t0\n");
  EXPECT_EQ(topo_error(one + "\n" + one),
            "inventory f: expected one matrix in a file (several go into a folder, a file each), "
            "got a second one (line 5, column 12)");
}

TEST(NvidiaSmiTopo, IsTold) {
  EXPECT_TRUE(is_nvidia_smi_topo(machine_text("dgx1-v100.txt")));
  EXPECT_TRUE(is_nvidia_smi_topo(machine_text("dgx-a100.txt")));
  EXPECT_FALSE(is_nvidia_smi_topo(machine_text("fleet.toml")));
  EXPECT_FALSE(is_nvidia_smi_topo("GPU0 is fine\n"));
}

}  // namespace
}  // namespace muster
