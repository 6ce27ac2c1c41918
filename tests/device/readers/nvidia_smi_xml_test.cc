#include "muster/device/readers/nvidia_smi_xml.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string with_gpu(const std::string& body) {
  return cat(
      "<nvidia_smi_log>\n<gpu id=\"00000000:01:00.0\">\n", body, "\n</gpu>\n</nvidia_smi_log>");
}

constexpr const char* kNames = "<product_name>Tesla T4</product_name><uuid>GPU-1</uuid>";

std::string error_with(const std::string& body) {
  return error_of([&] { nvidia_smi_xml_host(with_gpu(body), "f"); });
}

Gpu gpu_with(const std::string& body) {
  return nvidia_smi_xml_host(with_gpu(cat(kNames, body)), "f").gpus.at(0);
}

TEST(NvidiaSmiXml, AWholeGpu) {
  const Host host = nvidia_smi_xml_host(machine_text("mig-a100.xml"), "mig-a100.xml");
  EXPECT_EQ(host.name, "mig-a100");
  EXPECT_EQ(host.driver_version, "535.54.03");
  ASSERT_EQ(host.gpus.size(), 2);
  const Gpu& gpu = host.gpus[1];
  EXPECT_EQ(gpu.index.value, 1);
  EXPECT_EQ(gpu.pci.value, "0000:41:00.0");
  EXPECT_EQ(gpu.model, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(gpu.memory_total_bytes, uint64_t{81920} << 20);
  EXPECT_EQ(gpu.memory_free_bytes, uint64_t{79951} << 20);
  EXPECT_EQ(gpu.utilization_percent, 93);
  EXPECT_EQ(gpu.temperature_celsius, 31);
  EXPECT_EQ(gpu.power_watts, 67.03);
  EXPECT_EQ(gpu.power_limit_watts, 400);
  EXPECT_EQ(gpu.ecc_uncorrected_errors, 1);
  EXPECT_EQ(gpu.compute_capability, "8.0");
  EXPECT_EQ(gpu.pcie_generation, 4);
  EXPECT_EQ(gpu.pcie_width, 16);
  EXPECT_EQ(gpu.health, kHealthy);
  EXPECT_FALSE(gpu.mig_enabled);
  EXPECT_THAT(gpu.processes, ElementsAre(GpuProcess{4242, uint64_t{1024} << 20}))
      << "a desktop does not count";
}

TEST(NvidiaSmiXml, MigInstances) {
  const Gpu gpu = nvidia_smi_xml_host(machine_text("mig-a100.xml"), "f").gpus.at(0);
  EXPECT_TRUE(gpu.mig_enabled);
  EXPECT_EQ(gpu.utilization_percent, std::nullopt) << "N/A";
  ASSERT_EQ(gpu.mig.size(), 3);
  EXPECT_EQ(gpu.mig[0].profile, "3g.40gb");
  EXPECT_EQ(gpu.mig[1].profile, "2g.20gb");
  EXPECT_EQ(gpu.mig[2].profile, "1g.10gb");
  EXPECT_EQ(gpu.mig[2].uuid.value, cat("MIG-", gpu.uuid.value, "/13/0"));
  EXPECT_EQ(gpu.mig[2].memory_total_bytes, uint64_t{9728} << 20);
}

// The name counts eighths of the GPU's memory; rounding up what an instance has gives other names.
TEST(NvidiaSmiXml, MigProfilesAreNamedBySlices) {
  const auto profile = [](const char* architecture, int gpu_mib, int instance_mib, int processors) {
    return gpu_with(
               cat("<product_architecture>",
                   architecture,
                   "</product_architecture><fb_memory_usage><total>",
                   gpu_mib,
                   " MiB</total></fb_memory_usage><mig_mode><current_mig>Enabled</current_mig></"
                   "mig_mode>"
                   "<mig_devices><mig_device><gpu_instance_id>1</"
                   "gpu_instance_id><compute_instance_id>0"
                   "</compute_instance_id><device_attributes><shared><multiprocessor_count>",
                   processors,
                   "</multiprocessor_count></shared></device_attributes><fb_memory_usage><total>",
                   instance_mib,
                   " MiB</total></fb_memory_usage></mig_device></mig_devices>"))
        .mig.at(0)
        .profile;
  };
  EXPECT_EQ(profile("Hopper", 95830, 11008, 16), "1g.12gb") << "H100 NVL";
  EXPECT_EQ(profile("Hopper", 95830, 47488, 60), "3g.47gb");
  EXPECT_EQ(profile("Hopper", 143771, 16384, 16), "1g.18gb") << "H200";
  EXPECT_EQ(profile("Hopper", 143771, 71424, 60), "3g.71gb");
  EXPECT_EQ(profile("Hopper", 81559, 9984, 16), "1g.10gb") << "H100";
  EXPECT_EQ(profile("Ampere", 40960, 4864, 14), "1g.5gb") << "A100";
  EXPECT_EQ(profile("Ampere", 24576, 5952, 14), "1g.6gb") << "A30";
}

TEST(NvidiaSmiXml, OlderAndNewerNames) {
  const Gpu old = gpu_with(
      "<power_readings><power_draw>25.1 W</power_draw><power_limit>250 "
      "W</power_limit></power_readings>"
      "<ecc_errors><volatile><double_bit><total>3</total></double_bit></volatile></ecc_errors>");
  EXPECT_EQ(old.power_watts, 25.1);
  EXPECT_EQ(old.power_limit_watts, 250);
  EXPECT_EQ(old.ecc_uncorrected_errors, 3);
  const Gpu fresh = gpu_with(
      "<gpu_power_readings><average_power_draw>20 W</average_power_draw><instant_power_draw>30 "
      "W</instant_power_draw>"
      "</gpu_power_readings><ecc_errors><volatile><sram_uncorrectable_parity>1</"
      "sram_uncorrectable_parity>"
      "<sram_uncorrectable_secded>2</sram_uncorrectable_secded><dram_uncorrectable>4</"
      "dram_uncorrectable></"
      "volatile>"
      "</ecc_errors>");
  EXPECT_EQ(fresh.power_watts, 30);
  EXPECT_EQ(fresh.ecc_uncorrected_errors, 7);
  EXPECT_EQ(gpu_with("").ecc_uncorrected_errors, std::nullopt);
}

TEST(NvidiaSmiXml, SickGpusAreKept) {
  const auto health = [](const char* body) {
    return nvidia_smi_xml_host(with_gpu(body), "f").gpus.at(0).health;
  };
  EXPECT_EQ(health("<product_name>x</product_name><uuid>GPU is lost</uuid>"), "GPU is lost");
  EXPECT_EQ(health("<uuid>[Unknown Error]</uuid>"), "Unknown Error");
  EXPECT_EQ(health("<uuid>GPU-1</uuid><gpu_reset_status><reset_required>Yes</reset_required></"
                   "gpu_reset_status>"),
            "GPU requires reset");
  EXPECT_EQ(health("<uuid>GPU-1</uuid><gpu_recovery_action>Reboot</gpu_recovery_action>"),
            "needs recovery: Reboot");
  EXPECT_EQ(health("<uuid>GPU-1</uuid><gpu_recovery_action>None</gpu_recovery_action>"), kHealthy);
}

TEST(NvidiaSmiXml, ErrorsNameTheLine) {
  EXPECT_EQ(error_of([] { nvidia_smi_xml_host("<other/>", "f"); }),
            "inventory f: expected <nvidia_smi_log>, got <other> (line 1)");
  EXPECT_THAT(error_with("<product_name>x</product_name>"), HasSubstr("expected uuid GPU-"));
  EXPECT_THAT(
      error_with(cat(kNames, "\n<fb_memory_usage>\n<total>12 GB</total></fb_memory_usage>")),
      HasSubstr("expected a number up to 1.07374e+09 in MiB, got 12 GB (line 5)"));
  EXPECT_THAT(
      error_with(cat(kNames,
                     "<fb_memory_usage><total>99999999999999999999 MiB</total></fb_memory_usage>")),
      HasSubstr("got 99999999999999999999 MiB"));
  EXPECT_THAT(error_with(cat(kNames, "<temperature><gpu_temp>1e999 C</gpu_temp></temperature>")),
              HasSubstr("1e999"));
  EXPECT_THAT(
      error_with(cat(kNames, "<processes><process_info><type>C</type></process_info></processes>")),
      HasSubstr("expected a pid"));
  EXPECT_THAT(error_with(cat(kNames, "<mig_devices><mig_device/></mig_devices>")),
              HasSubstr("gpu_instance_id"));
  EXPECT_THAT(
      error_of([] { nvidia_smi_xml_host("<nvidia_smi_log><gpu id='x'/></nvidia_smi_log>", "f"); }),
      HasSubstr("expected id= a PCI address, got x"));
}

// As `nvidia-smi -q -x -i 0` writes it.
TEST(NvidiaSmiXml, GpusThatAreLeftOutAreANote) {
  const auto notes_of = [](const char* attached) {
    const std::string text = cat("<nvidia_smi_log><attached_gpus>",
                                 attached,
                                 "</attached_gpus><gpu id=\"00000000:01:00.0\">",
                                 kNames,
                                 "</gpu></nvidia_smi_log>");
    return nvidia_smi_xml_host(text, "f").notes;
  };
  EXPECT_THAT(notes_of("8"), ElementsAre(HasSubstr("the file has 1 of 8 attached GPUs")));
  EXPECT_THAT(notes_of("1"), testing::IsEmpty());
  EXPECT_THAT(notes_of("N/A"), testing::IsEmpty());
}

TEST(NvidiaSmiXml, NoGpusIsNoError) {
  EXPECT_EQ(nvidia_smi_xml_host("<nvidia_smi_log/>", "f").gpu_note, "the inventory lists none");
}

}  // namespace
}  // namespace muster
