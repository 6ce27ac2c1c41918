#include "muster/device/readers/hwloc_xml.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::HasSubstr;

Host hwloc_host(const std::string& inside,
                const std::string& after = "",
                const char* version = "2.0") {
  return hwloc_xml_host(cat("<topology version=\"",
                            version,
                            "\">\n<object type=\"Machine\" cpuset=\"0x3\" nodeset=\"0x1\">",
                            inside,
                            "</object>",
                            after,
                            "</topology>"),
                        "f");
}

std::string gpu_object(int number, const std::string& inside = "") {
  return cat("<object type=\"PCIDev\" gp_index=\"",
             number,
             "\" pci_busid=\"0000:0",
             number,
             ":00.0\" pci_type=\"0302 [10de:1db5] [10de:131d] a1 00\">",
             inside,
             "</object>");
}

std::string bridge(const std::string& type, const std::string& inside) {
  return cat("<object type=\"Bridge\" bridge_type=\"", type, "\">", inside, "</object>");
}

std::string switched(const std::string& inside) {
  return bridge("1-1", inside);
}

TEST(HwlocXml, TwoSockets) {
  const Host host = hwloc_xml_host(machine_text("quad-pcie-dual-socket.xml"), "f.xml");
  EXPECT_EQ(host.name, "quad-pcie") << "the file says it";
  EXPECT_EQ(host.num_cores, 16);
  ASSERT_EQ(host.cores.size(), 8);
  EXPECT_EQ(host.cores[5], (CpuCore{.cpus = {5, 13}, .numa_node = 1, .socket = 1, .l3 = 1}));
  ASSERT_EQ(host.gpus.size(), 4);
  const Gpu& gpu = host.gpus[2];
  EXPECT_EQ(gpu.index.value, 2);
  EXPECT_EQ(gpu.pci.value, "0000:99:00.0");
  EXPECT_EQ(gpu.model, "NVIDIA A100-PCIE-40GB");
  EXPECT_EQ(gpu.memory_total_bytes, uint64_t{40} << 30);
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.near_cpus, "4-7,12-15");
  EXPECT_TRUE(gpu.uuid.value.starts_with("GPU-1b881b09-"));
  EXPECT_EQ(host.gpu_links[0][1], (Link{LinkKind::nvlink, 12})) << "300 GB/s of 25 each";
  EXPECT_EQ(host.gpu_links[0][2].kind, LinkKind::sys);
  ASSERT_EQ(host.nics.size(), 1);
  EXPECT_EQ(host.nics[0].name, "mlx5_0");
  EXPECT_EQ(host.nics[0].pci.value, "0000:4b:00.0");
  EXPECT_EQ(host.nic_links[0][0].kind, LinkKind::node);
  EXPECT_EQ(host.nic_links[2][0].kind, LinkKind::sys);
}

TEST(HwlocXml, BridgesBetweenGpus) {
  // 1 and 2 on the ports of a switch, 3 on another below the same upper one, 4 on the host bridge
  // itself.
  const std::string lower = switched(switched(gpu_object(1)) + switched(gpu_object(2)));
  const std::string upper = switched(switched(lower) + switched(gpu_object(3)));
  const Host host = hwloc_host(bridge("0-1", upper + gpu_object(4)) + bridge("0-1", gpu_object(5)));
  ASSERT_EQ(host.gpus.size(), 5);
  EXPECT_EQ(host.gpu_links[0][1].kind, LinkKind::pix);
  EXPECT_EQ(host.gpu_links[0][2].kind, LinkKind::pxb);
  EXPECT_EQ(host.gpu_links[0][3].kind, LinkKind::phb);
  EXPECT_EQ(host.gpu_links[0][4].kind, LinkKind::node);
}

TEST(HwlocXml, NvlinkThroughSwitches) {
  const Host host = hwloc_host(gpu_object(1) + gpu_object(2),
                               R"(<distances2hetero nbobjs="4" name="NVLinkBandwidth">
    <indexes>PCIDev:1 PCIDev:2 PCIDev:8</indexes><indexes> PCIDev:9</indexes>
    <u64values>0 0 75000 75000  0 0 75000 50000</u64values><u64values>75000 75000 0 0  75000 50000 0 0</u64values>
    </distances2hetero>)");
  EXPECT_EQ(host.gpu_links[0][1], (Link{LinkKind::nvlink, 5}))
      << "what the one with fewer links can carry";
}

// A POWER8's GPUs have NVLinks to the processors, which pass nothing on.
TEST(HwlocXml, ProcessorsAreNoSwitches) {
  const Host host = hwloc_host(gpu_object(1) + gpu_object(2),
                               R"(<distances2hetero nbobjs="3" name="NVLinkBandwidth">
    <indexes>PCIDev:1 PCIDev:2 Package:7</indexes>
    <u64values>0 0 40000  0 0 40000  40000 40000 0</u64values></distances2hetero>)");
  EXPECT_NE(host.gpu_links[0][1].kind, LinkKind::nvlink);
}

TEST(HwlocXml, AmdWithXgmi) {
  const auto gpu = [](int i, const char* bus) {
    return cat("<object type='PCIDev' gp_index='",
               i,
               "' pci_busid='",
               bus,
               "' pci_type='0380 [1002:7408] [1002:0b0c] 00 00'>",
               "<object type='OSDev' gp_index='",
               i + 10,
               "' name='rsmi",
               1 - i,
               "' osdev_type='1'>",
               "<info name='AMDUUID' value='61f2504172da5ee",
               i,
               "'/><info name='RSMIVRAMSize' value='67092480'/></object></object>");
  };
  const Host host = hwloc_host(
      gpu(0, "c1:00.0") + gpu(1, "c6:00.0"),
      "<distances2 nbobjs='2' name='XGMIBandwidth' indexing='gp'><indexes>10 11</indexes>"
      "<u64values>0 200000 200000 0</u64values></distances2>");
  ASSERT_EQ(host.gpus.size(), 2);
  EXPECT_EQ(host.gpus[0].pci.value, "0000:c6:00.0") << "rsmi0";
  EXPECT_EQ(host.gpus[0].uuid.value, "GPU-61f2504172da5ee1");
  EXPECT_EQ(host.gpus[0].vendor, Vendor::amd);
  EXPECT_EQ(host.gpus[0].compute_capability, "gfx90a");
  EXPECT_EQ(host.gpus[0].memory_total_bytes, uint64_t{67092480} << 10);
  EXPECT_EQ(host.gpu_links[0][1], (Link{LinkKind::xgmi, 4}));
}

TEST(HwlocXml, MemoryOfGpusIsNoPlaceOfItsOwn) {
  const Host host =
      hwloc_xml_host(R"(<topology version="2.0"><object type="Machine" cpuset="0x3" nodeset="0x7">
    <object type="Package" cpuset="0x1" nodeset="0x5"><object type="NUMANode" os_index="0" cpuset="0x1" nodeset="0x1"/>
      <object type="NUMANode" os_index="2" cpuset="0x1" nodeset="0x4"/><object type="Core" cpuset="0x1" nodeset="0x5"/>)" +
                         gpu_object(1) + R"(</object>
    <object type="Package" cpuset="0x2" nodeset="0x2"><object type="NUMANode" os_index="1" cpuset="0x2" nodeset="0x2"/>
      <object type="Core" cpuset="0x2" nodeset="0x2"/></object></object></topology>)",
                     "f");
  EXPECT_EQ(host.gpus.at(0).numa_node, 0);
  EXPECT_EQ(host.cores.at(0).numa_node, 0);
  EXPECT_EQ(host.cores.at(1).numa_node, 1);
}

TEST(HwlocXml, NicsOfVersionThree) {
  const char* const nic =
      "<object type='PCIDev' pci_busid='01:00.0' pci_type='0207 [15b3:1021] [0:0] 00 00'>"
      "<object type='OSDev' name='ib0' osdev_type='16'/><object type='OSDev' name='mlx5_3' "
      "osdev_type='%'/></object>";
  std::string text = nic;
  EXPECT_EQ(hwloc_host(text.replace(text.find('%'), 1, "32"), "", "3.0").nics.at(0).name, "mlx5_3");
  text = nic;
  EXPECT_EQ(hwloc_host(text.replace(text.find('%'), 1, "3"), "", "2.0").nics.at(0).name, "mlx5_3");
}

TEST(HwlocXml, ErrorsNameTheLine) {
  const auto hwloc_error = [](const std::string& inside, const std::string& after = "") {
    return error_of([&] { hwloc_host(inside, after); });
  };
  EXPECT_EQ(error_of([] { hwloc_xml_host("<topology/>", "f"); }),
            "inventory f: expected <topology> with an <object>, got <topology> (line 1)");
  EXPECT_THAT(hwloc_error("\n<object type='PCIDev' pci_busid='x'/>"),
              HasSubstr("pci_busid= a PCI address, got x (line 3)"));
  EXPECT_THAT(hwloc_error("<object type='Core' cpuset='0xf...f' nodeset='0x1'/>"),
              HasSubstr("cpuset= a mask, got 0xf...f"));
  EXPECT_THAT(hwloc_error("<object type='Core' cpuset='0x1,0x1,0x0' nodeset='zz'/>"),
              HasSubstr("nodeset= a mask"));
  EXPECT_THAT(hwloc_error("<object type='Core' cpuset='0xffffffff,0xffffffff,0x1' nodeset='0x1'/>"),
              HasSubstr("threads of a core"));
  EXPECT_THAT(hwloc_error("", "<distances2 nbobjs='99999999' name='NVLinkBandwidth'/>"),
              HasSubstr("nbobjs= an integer from 1"));
  EXPECT_THAT(hwloc_error("",
                          "<distances2 nbobjs='2' name='NVLinkBandwidth'><indexes>1 "
                          "2</indexes><u64values>1</u64values></distances2>"),
              HasSubstr("expected 2 indexes and 4 values, got 2 and 1"));
  EXPECT_THAT(
      hwloc_error(
          "", "<distances2 nbobjs='1' name='NVLinkBandwidth'><indexes>1 2</indexes></distances2>"),
      HasSubstr("at most 1 numbers"));
  EXPECT_THAT(
      hwloc_error("",
                  "<distances2 nbobjs='1' "
                  "name='NVLinkBandwidth'><indexes>99999999999999999999</indexes></distances2>"),
      HasSubstr("expected numbers"));
}

}  // namespace
}  // namespace muster
