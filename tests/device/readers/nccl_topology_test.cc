#include "muster/device/readers/nccl_topology.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::HasSubstr;

Host nccl_host(const std::string& inside) {
  return nccl_topology_hosts(cat("<system version=\"1\">\n", inside, "\n</system>"), "f").at(0);
}

std::string nccl_error(const std::string& inside) {
  return error_of([&] { nccl_host(inside); });
}

constexpr const char* kTwoSwitches = R"(<cpu numaid="-1">
  <pci busid="ffff:ff:01.0" class="0x060400">
    <pci busid="ffff:ff:02.0" class="0x060400">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="8 GT/s" link_width="8"/>
      <pci busid="0000:01:00.0" class="0x030200"/>
      <pci busid="0000:09:00.0" class="0x020000"/>
    </pci>
    <pci busid="0000:03:00.0" class="0x030000"/>
  </pci>
  <pci busid="0000:04:00.0" class="0x030200"/>
</cpu>)";

TEST(NcclTopology, NvswitchMachine) {
  const Host host = nccl_topology_hosts(machine_text("dgx-h100.xml"), "dgx-h100.xml").at(0);
  ASSERT_EQ(host.gpus.size(), 8);
  EXPECT_EQ(host.name, "dgx-h100");
  EXPECT_EQ(host.num_cores, 224);
  const Gpu& gpu = host.gpus[4];
  EXPECT_EQ(gpu.index.value, 4);
  EXPECT_EQ(gpu.pci.value, "0000:9d:00.0");
  EXPECT_EQ(gpu.model, "NVIDIA H100 80GB HBM3") << "by its PCI id";
  EXPECT_EQ(gpu.compute_capability, "9.0");
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.near_cpus, "56-111,168-223");
  EXPECT_EQ(gpu.pcie_generation, 5);
  EXPECT_EQ(gpu.pcie_width, 16);
  EXPECT_EQ(host.gpu_links[0][7], (Link{LinkKind::nvlink, 18}));
  ASSERT_EQ(host.nics.size(), 8);
  EXPECT_EQ(host.nics[4].name, "mlx5_4");
  EXPECT_EQ(host.nics[4].numa_node, 1);
  EXPECT_EQ(host.nic_links[4][4].kind, LinkKind::pix);
  EXPECT_EQ(host.nic_links[4][5].kind, LinkKind::phb);
  EXPECT_EQ(host.nic_links[4][0].kind, LinkKind::sys);
}

TEST(NcclTopology, PciOnly) {
  const Host host = nccl_host(kTwoSwitches);
  ASSERT_EQ(host.gpus.size(), 4);
  EXPECT_EQ(host.gpus[0].pci.value, "0000:01:00.0") << "PCI order, whatever the file's";
  EXPECT_EQ(host.gpus[1].pcie_generation, 3);
  EXPECT_EQ(host.gpus[1].pcie_width, 8);
  EXPECT_EQ(host.gpus[0].numa_node, std::nullopt);
  EXPECT_EQ(host.gpu_links[0][1].kind, LinkKind::pix);
  EXPECT_EQ(host.gpu_links[0][2].kind, LinkKind::pxb);
  EXPECT_EQ(host.gpu_links[0][3].kind, LinkKind::phb);
  ASSERT_EQ(host.nics.size(), 1);
  EXPECT_EQ(host.nics[0].name, "0000:09:00.0");
  EXPECT_EQ(host.nic_links[0][0].kind, LinkKind::pix);
}

TEST(NcclTopology, StraightLinksAndTheFilesNumbers) {
  const Host host = nccl_host(R"(<cpu numaid="0" affinity="ff">
    <pci busid="0000:01:00.0" class="0x030200"><gpu dev="1" sm="70"><nvlink target="0000:02:00.0" count="2" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:02:00.0" class="0x030200"><gpu dev="0" sm="70"><nvlink target="0000:01:00.0" count="1" tclass="0x030200"/></gpu></pci>
    <nic><net name="eth0"/></nic></cpu>)");
  EXPECT_EQ(host.gpus.at(0).pci.value, "0000:02:00.0") << "dev";
  EXPECT_EQ(host.gpus[0].compute_capability, "7.0");
  EXPECT_EQ(host.gpu_links[0][1], (Link{LinkKind::nvlink, 1})) << "the smaller of the two ends";
  EXPECT_EQ(host.nics.at(0).name, "eth0");
  EXPECT_EQ(host.nic_links[0][0].kind, LinkKind::phb);
}

TEST(NcclTopology, Xgmi) {
  const Host host = nccl_host(R"(<cpu numaid="0">
    <pci busid="c1:00.0" class="0x038000" vendor="0x1002" device="0x7408"><gpu dev="0" sm="910"><xgmi target="0000:c6:00.0" count="4" tclass="0x038000"/></gpu></pci>
    <pci busid="c6:00.0" class="0x038000" vendor="0x1002" device="0x7408"><gpu dev="1"/></pci></cpu>)");
  EXPECT_EQ(host.gpus.at(0).vendor, Vendor::amd);
  EXPECT_EQ(host.gpus[0].compute_capability, "gfx90a");
  EXPECT_EQ(host.gpu_links[1][0], (Link{LinkKind::xgmi, 4})) << "one end is enough";
}

std::string gpu_element(const char* busid, int dev) {
  return cat("<pci busid='",
             busid,
             "' class='0x030200' vendor='0x10de' device='0x20b2'><gpu dev='",
             dev,
             "' sm='80'><nvlink target='0000:c4:00.0' count='12' tclass='0x068000'/></gpu></pci>");
}

// RCCL's dump of GPUs on PCIe: nothing but `gcn` tells whose they are.
TEST(NcclTopology, AmdWithoutInfinityFabric) {
  const auto of_gcn = [](const char* gcn) {
    return nccl_host(cat("<cpu numaid='0'><pci busid='c1:00.0' class='0x038000'><gpu dev='0' "
                         "sm='90' gcn='",
                         gcn,
                         "'/></pci></cpu>"))
        .gpus.at(0);
  };
  EXPECT_EQ(of_gcn("gfx1100").vendor, Vendor::amd);
  EXPECT_EQ(of_gcn("gfx90a:sramecc+:xnack-").compute_capability, "gfx90a");
  EXPECT_EQ(of_gcn("908").compute_capability, "gfx908") << "as older ROCm wrote it";
  EXPECT_EQ(of_gcn("910").compute_capability, "gfx90a");
}

TEST(NcclTopology, HostsThatHaveHashesAreTold) {
  const auto cpu = [](const char* hash, int node, const char* busid, int dev) {
    return cat(
        "<cpu host_hash='", hash, "' numaid='", node, "'>", gpu_element(busid, dev), "</cpu>");
  };
  const std::vector<Host> hosts = nccl_topology_hosts(cat("<system>",
                                                          cpu("0x1", 0, "01:00.0", 0),
                                                          cpu("0x2", 0, "01:00.0", 0),
                                                          cpu("0x1", 1, "81:00.0", 1),
                                                          "</system>"),
                                                      "rack.xml");
  ASSERT_EQ(hosts.size(), 2);
  EXPECT_EQ(hosts[0].name, "rack-0");
  EXPECT_EQ(hosts[0].gpus.size(), 2);
  EXPECT_EQ(hosts[0].gpu_links[0][1], (Link{LinkKind::nvlink, 12}));
  EXPECT_EQ(hosts[1].name, "rack-1");
  EXPECT_EQ(hosts[1].gpus.size(), 1);
  EXPECT_NE(hosts[0].gpus[0].uuid, hosts[1].gpus[0].uuid);
}

TEST(NcclTopology, TwoHostsThatCannotBeToldAreAnError) {
  EXPECT_THAT(nccl_error(cat("<cpu numaid='0'>",
                             gpu_element("01:00.0", 0),
                             "</cpu>\n<cpu numaid='0'>",
                             gpu_element("02:00.0", 0),
                             "</cpu>")),
              HasSubstr("expected the topology of one host (of several, a file each in a folder), "
                        "got NUMA node 0 "
                        "twice (line 3)"));
}

// Of containers on one host that each see one GPU, which is their device 0.
TEST(NcclTopology, ProcessesThatEachSeeOneGpu) {
  const Host host = nccl_host(cat("<cpu numaid='0'>",
                                  gpu_element("81:00.0", 0),
                                  gpu_element("80:00.0", 0),
                                  "</cpu>",
                                  "<cpu numaid='1'>",
                                  gpu_element("c1:00.0", 0),
                                  "</cpu>"));
  ASSERT_EQ(host.gpus.size(), 3);
  EXPECT_EQ(host.gpus[0].pci.value, "0000:80:00.0");
  EXPECT_EQ(host.gpus[1].index.value, 1);
  EXPECT_EQ(host.gpu_links[0][2], (Link{LinkKind::nvlink, 12}));
  EXPECT_THAT(host.notes, testing::ElementsAre(HasSubstr("numbered by their PCI addresses")));
}

TEST(NcclTopology, ACloudsFileHasNoNvlinks) {
  EXPECT_THAT(nccl_host(kTwoSwitches).notes,
              testing::ElementsAre(HasSubstr("NCCL_TOPO_DUMP_FILE writes one")));
  EXPECT_THAT(nccl_topology_hosts(machine_text("dgx-h100.xml"), "f").at(0).notes,
              testing::IsEmpty());
}

TEST(NcclTopology, ErrorsNameTheLine) {
  EXPECT_EQ(error_of([] { nccl_topology_hosts("<graph/>", "f"); }),
            "inventory f: expected <system>, got <graph> (line 1)");
  EXPECT_THAT(nccl_error("<cpu numaid='x'/>"),
              HasSubstr("numaid= an integer from -1 to 65535, got 'x' (line 2)"));
  EXPECT_THAT(nccl_error("<cpu affinity='zz'/>"),
              HasSubstr("affinity= a mask of CPUs, got zz (line 2)"));
  EXPECT_THAT(nccl_error("<cpu>\n<pci class='0x030200' busid='7'/></cpu>"),
              HasSubstr("busid= a PCI address, got 7 (line 3)"));
  EXPECT_THAT(nccl_error("<cpu><pci class='red'/></cpu>"),
              HasSubstr("class= a hexadecimal number, got red"));
  EXPECT_THAT(nccl_error("<cpu><pci class='0x030200' busid='1:00.0' link_width='-1'/></cpu>"),
              HasSubstr("got 1:00.0"));
  EXPECT_THAT(nccl_error("<cpu><pci class='0x030200' busid='01:00.0' link_width='-1'/></cpu>"),
              HasSubstr("link_width="));
  EXPECT_THAT(nccl_error("<cpu><pci class='0x030200' busid='01:00.0'/><pci class='0x030200' "
                         "busid='01:00.0'/></cpu>"),
              HasSubstr("expected the topology of one host (of several, a file each in a folder), "
                        "got PCI address "
                        "0000:01:00.0 twice"));
}

}  // namespace
}  // namespace muster
