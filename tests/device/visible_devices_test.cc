#include "muster/device/visible_devices.h"

#include <gmock/gmock.h>

#include <optional>

#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::HasSubstr;
using Kind = VisibleEntry::Kind;

const char* const kUuids[] = {"GPU-aa11c0de-0000-4000-8000-000000000000",
                              "GPU-aa22c0de-0000-4000-8000-000000000001",
                              "GPU-bb33c0de-0000-4000-8000-000000000002",
                              "GPU-cc44c0de-0000-4000-8000-000000000003"};

std::vector<Gpu> machine(size_t num_gpus = 4) {
  std::vector<Gpu> gpus(num_gpus);
  for (size_t i = 0; i < num_gpus; ++i) {
    gpus[i].index.value = static_cast<int>(i);
    gpus[i].uuid.value = kUuids[i];
  }
  return gpus;
}

struct Case {
  const char* text;
  std::vector<size_t> visible;  // of four GPUs
};

// gtest prints and names a case by this.
std::ostream& operator<<(std::ostream& out, const Case& value) {
  return out << '\'' << value.text << '\'';
}

class VisibleDevicesGrid : public testing::TestWithParam<Case> {};

TEST_P(VisibleDevicesGrid, AsCudaReadsIt) {
  EXPECT_EQ(visible_devices(machine(), GetParam().text).gpus, GetParam().visible);
}

INSTANTIATE_TEST_SUITE_P(Indices,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"0", {0}},
                             {"3", {3}},
                             {"0,1,2,3", {0, 1, 2, 3}},
                             {"3,1,0,2", {3, 1, 0, 2}},
                             {"2,1", {2, 1}},
                             {"007,2", {}},
                             {"01,2", {1, 2}},
                         }));

INSTANTIATE_TEST_SUITE_P(NoDevices,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"", {}},
                             {"-1", {}},
                             {"-1,0", {}},
                             {"NoDevFiles", {}},
                             {"none", {}},
                             {" ", {}},
                             {",", {}},
                             {",0", {}},
                             {"all", {}},
                             {"one,two,3", {}},
                         }));

INSTANTIATE_TEST_SUITE_P(CutAtTheFirstInvalid,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"0,2,-1,1", {0, 2}},
                             {"0,4,1", {0}},
                             {"9", {}},
                             {"0,,1", {0}},
                             {"0,1,", {0, 1}},
                             {"3,2,two,one", {3, 2}},
                             {"0,99999999999999999999,1", {0}},
                             {"0,2147483648", {0}},
                             {"1,-0,2", {1, 0, 2}},
                             {"1,--2", {1}},
                             {"1,+,2", {1}},
                         }));

INSTANTIATE_TEST_SUITE_P(NumbersLikeStrtol,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"1gpu2,2ampere", {1, 2}},
                             {"0 1", {0}},
                             {" 2, 1 ,\t0", {2, 1, 0}},
                             {"2, +3, -0, 1", {2, 3, 0, 1}},
                             {"+ 3", {}},
                             {"0x1", {0}},
                             {"1.9,2", {1, 2}},
                             {"0;1", {0}},
                             {"0-2", {0}},
                         }));

INSTANTIATE_TEST_SUITE_P(Uuids,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"GPU-bb33c0de-0000-4000-8000-000000000002", {2}},
                             {"GPU-bb33c0de,GPU-aa11", {2, 0}},
                             {"GPU-b", {2}},
                             {"GPU-aa", {}},
                             {"GPU-", {}},
                             {"GPU-cc,GPU-aa,GPU-bb", {3}},
                             {"GPU-dd", {}},
                             {"GPU-cc,GPU-dd,GPU-bb", {3}},
                             {"GPU-cc44c0de-0000-4000-8000-0000000000033", {}},
                             {"gpu-bb33", {}},
                             {"GPU-cc, GPU-bb", {3}},
                             {" GPU-cc", {}},
                             {"GPU-cc ,GPU-bb", {}},
                         }));

INSTANTIATE_TEST_SUITE_P(KindsDoNotMix,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"GPU-bb,0", {2}},
                             {"GPU-bb,0,GPU-cc", {2}},
                             {"0,GPU-bb", {0}},
                             {"0,GPU-bb,1", {0}},
                             {"0,MIG-aaaa", {0}},
                             {"GPU-bb,MIG-aaaa", {2}},
                         }));

INSTANTIATE_TEST_SUITE_P(MigOfOtherMachines,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"MIG-89c850dc-e4ea-5b8f-9a26-000000000000", {}},
                             {"MIG-GPU-aa11c0de-0000-4000-8000-000000000000/1/0", {}},
                             {"MIG-89c850dc,0", {}},
                         }));

INSTANTIATE_TEST_SUITE_P(Duplicates,
                         VisibleDevicesGrid,
                         testing::ValuesIn(std::vector<Case>{
                             {"0,0", {}},
                             {"0,1,2,1", {}},
                             {"1,+1", {}},
                             {"0,0,9", {}},
                             {"0,1,-1,0", {0, 1}},
                             {"0,9,0", {0}},
                             {"GPU-bb,GPU-bb", {}},
                             {"GPU-bb,GPU-bb33c0de", {}},
                             {"GPU-cc,GPU-bb,GPU-cc44", {}},
                         }));

TEST(VisibleDevices, APrefixIsUniqueAmongTheGpusThereAre) {
  EXPECT_EQ(visible_devices(machine(1), "GPU-").gpus, std::vector<size_t>({0}));
  EXPECT_EQ(visible_devices(machine(1), "GPU-aa").gpus, std::vector<size_t>({0}));
  EXPECT_TRUE(visible_devices({}, "0").gpus.empty());
}

TEST(VisibleDevices, IndicesAreTheDriversNotPlacesInTheList) {
  auto gpus = machine();
  std::swap(gpus[0], gpus[3]);
  EXPECT_EQ(visible_devices(gpus, "3,0").gpus, std::vector<size_t>({0, 3}));
}

TEST(VisibleDevices, SaysWhatWasCutAndWhy) {
  EXPECT_EQ(visible_devices(machine(), "1,0").remark, "");
  EXPECT_EQ(visible_devices(machine(), "").remark, "");
  EXPECT_EQ(visible_devices(machine(), "0,7,1").remark,
            "entry 2, '7', hides itself and all entries after it: there is no such GPU");
  EXPECT_THAT(visible_devices(machine(), "GPU-aa").remark, HasSubstr("several GPUs"));
  EXPECT_THAT(visible_devices(machine(), "MIG-1").remark, HasSubstr("MIG"));
  EXPECT_EQ(visible_devices(machine(), "2,2").remark,
            "entry 2, '2', names a GPU twice, which hides all");
  EXPECT_EQ(visible_devices(machine(), " 1 ,+0").remark, "");
  for (const char* const text : {"0 1", "0x1", "0.5"}) {
    EXPECT_EQ(visible_devices(machine(), text).gpus, std::vector<size_t>({0}));
    EXPECT_EQ(visible_devices(machine(), text).remark,
              cat("entry 1, '",
                  text,
                  "', is read as 0, as CUDA reads it: entries are numbers between commas"));
  }
}

TEST(VisibleDevices, TellsIndicesFromUuids) {
  EXPECT_TRUE(visible_devices(machine(), "0").by_index);
  EXPECT_FALSE(visible_devices(machine(), "GPU-bb").by_index);
}

// GPU 1 is split in two, GPU 2 in one; GPU 3 was, but is no longer.
std::vector<Gpu> split_machine() {
  auto gpus = machine();
  gpus[1].mig_enabled = gpus[2].mig_enabled = true;
  gpus[1].mig = {{.uuid = {"MIG-1a5c"}}, {.uuid = {"MIG-1b6d"}}};
  gpus[2].mig = {{.uuid = {"MIG-GPU-bb33c0de/1/0"}}};
  gpus[3].mig = {{.uuid = {"MIG-ffff"}}};
  return gpus;
}

std::vector<VisibleMig> visible_mig(const char* text) {
  const VisibleDevices visible = visible_devices(split_machine(), text);
  EXPECT_TRUE(visible.gpus.empty());
  return visible.mig;
}

TEST(VisibleMigInstances, ByUuidOrUniquePrefix) {
  using Instances = std::vector<VisibleMig>;
  EXPECT_EQ(visible_mig("MIG-1a5c"), Instances({{1, 0}}));
  EXPECT_EQ(visible_mig("MIG-1b,MIG-GPU-bb,MIG-1a"), Instances({{1, 1}, {2, 0}, {1, 0}}));
  EXPECT_EQ(visible_mig("MIG-1"), Instances()) << "two instances start so";
  EXPECT_EQ(visible_mig("MIG-1a,MIG-0,MIG-1b"), Instances({{1, 0}}));
  EXPECT_EQ(visible_mig("MIG-1a,1"), Instances({{1, 0}})) << "kinds do not mix";
  EXPECT_EQ(visible_mig("MIG-1a,MIG-1b,MIG-1a5"), Instances()) << "named twice";
  EXPECT_EQ(visible_mig("MIG-f"), Instances()) << "MIG mode is off";
}

TEST(VisibleMigInstances, SaysWhatWasCut) {
  EXPECT_EQ(visible_devices(split_machine(), "MIG-1a,MIG-1a").remark,
            "entry 2, 'MIG-1a', names an instance twice, which hides all");
  EXPECT_THAT(visible_devices(split_machine(), "MIG-1").remark, HasSubstr("several MIG instances"));
}

// NVIDIA's GPU 0, then three of AMD's.
std::vector<Gpu> rocm_machine() {
  auto gpus = machine();
  const char* const uuids[] = {
      "", "GPU-00d1badd00d5ca1e", "GPU-00d1f00df00df00d", "GPU-pci-0000:03:00.0"};
  for (size_t i = 1; i < gpus.size(); ++i) {
    gpus[i].vendor = Vendor::amd;
    gpus[i].uuid.value = uuids[i];
  }
  return gpus;
}

TEST(VisibleDevices, CudaSeesNoGpuOfAnotherVendor) {
  EXPECT_EQ(visible_devices(rocm_machine(), "0,1").gpus, std::vector<size_t>({0}));
  EXPECT_TRUE(visible_devices(rocm_machine(), "GPU-00d1b").gpus.empty());
}

struct RocmCase {
  const char* rocr;  // null: unset
  const char* hip;
  const char* cuda;
  std::vector<size_t> visible;
};

std::ostream& operator<<(std::ostream& out, const RocmCase& value) {
  for (const char* const mask : {value.rocr, value.hip, value.cuda}) {
    out << '\'' << (mask != nullptr ? mask : "unset") << "' ";
  }
  return out;
}

class VisibleRocmDevicesGrid : public testing::TestWithParam<RocmCase> {};

TEST_P(VisibleRocmDevicesGrid, AsRocmReadsThem) {
  const auto mask = [](const char* text) {
    return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
  };
  const RocmCase& each = GetParam();
  EXPECT_EQ(
      visible_rocm_devices(
          rocm_machine(), {.cuda = mask(each.cuda), .rocr = mask(each.rocr), .hip = mask(each.hip)})
          .gpus,
      each.visible);
}

INSTANTIATE_TEST_SUITE_P(Rocr,
                         VisibleRocmDevicesGrid,
                         testing::ValuesIn(std::vector<RocmCase>{
                             {nullptr, nullptr, nullptr, {1, 2, 3}},
                             {"", nullptr, nullptr, {}},
                             {"2,0", nullptr, nullptr, {3, 1}},
                             {" 1 ,0x2", nullptr, nullptr, {2, 3}},
                             {"0,3,1", nullptr, nullptr, {1}},
                             {"0,-1,1", nullptr, nullptr, {1}},
                             {"1,0,1", nullptr, nullptr, {2, 1}},
                             {"0,,1", nullptr, nullptr, {1}},
                             {"0,1x", nullptr, nullptr, {1}},
                             {"1,", nullptr, nullptr, {2}},
                             {"99999999999999999999", nullptr, nullptr, {}},
                             {"GPU-00d1f00d", nullptr, nullptr, {2}},
                             {"gpu-00D1BADD00D5CA1E,2", nullptr, nullptr, {1, 3}},
                             {"GPU-00d1", nullptr, nullptr, {}},
                             {"GPU-", nullptr, nullptr, {}},
                             {"GPU-pci-0000:03:00.0", nullptr, nullptr, {}},
                         }));

INSTANTIATE_TEST_SUITE_P(HipAfterRocr,
                         VisibleRocmDevicesGrid,
                         testing::ValuesIn(std::vector<RocmCase>{
                             {nullptr, "2,0", nullptr, {3, 1}},
                             {nullptr, "0,0,1", nullptr, {1, 2}},
                             {nullptr, "0,3,1", nullptr, {1}},
                             {nullptr, "0, 1", nullptr, {1}},
                             {nullptr, "01", nullptr, {}},
                             {nullptr, "-1", nullptr, {}},
                             {nullptr, "", nullptr, {1, 2, 3}},
                             {nullptr, "GPU-00d1f00df00df00d,0", nullptr, {2, 1}},
                             {nullptr, "GPU-nothing", nullptr, {}},
                             {"2,1", "1", nullptr, {2}},
                             {"2,1", "2", nullptr, {}},
                             {"", "0", nullptr, {}},
                             {nullptr, nullptr, "1", {2}},
                             {nullptr, "", "1", {2}},
                             {nullptr, "0", "1", {1}},
                         }));

TEST(VisibleRocmDevices, SaysWhatWasCutAndWhy) {
  EXPECT_EQ(
      visible_rocm_devices(rocm_machine(), {.cuda = "0,x", .rocr = "0,7"}).remark,
      "ROCR_VISIBLE_DEVICES: '7' hides itself and all entries after it: there is no such GPU; "
      "CUDA_VISIBLE_DEVICES: 'x' hides itself and all entries after it: there is no such GPU");
  EXPECT_EQ(visible_rocm_devices(rocm_machine(), {.rocr = "1,1"}).remark,
            "ROCR_VISIBLE_DEVICES: '1' hides itself and all entries after it: it was named before");
}

TEST(ParseVisibleDevices, KeepsTheKindsOfEntries) {
  EXPECT_EQ(parse_visible_devices("0, 3x,y,4"),
            (std::vector<VisibleEntry>{
                {Kind::index, 0, "0"}, {Kind::index, 3, " 3x"}, {Kind::invalid, -1, "y"}}));
  EXPECT_EQ(
      parse_visible_devices("MIG-a,MIG-GPU-b/1/2"),
      (std::vector<VisibleEntry>{{Kind::mig, -1, "MIG-a"}, {Kind::mig, -1, "MIG-GPU-b/1/2"}}));
  EXPECT_EQ(parse_visible_devices("GPU-a,5"),
            (std::vector<VisibleEntry>{{Kind::gpu_uuid, -1, "GPU-a"}, {Kind::invalid, -1, "5"}}));
  EXPECT_TRUE(parse_visible_devices("").empty());
}

}  // namespace
}  // namespace muster
