#include "muster/device/readers/captured_host.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "muster/device/readers/cpu_mask.h"
#include "muster/device/readers/device_tree.h"
#include "tests/device/readers/errors.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(CapturedHost, NamesComeFromFiles) {
  EXPECT_EQ(host_name_of("captures/box-7.xml"), "box-7");
  EXPECT_EQ(host_name_of("box"), "box");
  EXPECT_EQ(host_name_of("/tmp/.hidden"), ".hidden");
  EXPECT_EQ(host_name_of("a b:c;d,e!f.txt"), "a-b-c-d-e-f") << "so that --gpus can name it";
  EXPECT_EQ(host_name_of("/dev/fd/"), "host");
  EXPECT_EQ(host_name_of(std::string(1000, 'x')).size(), 64);
}

TEST(CapturedHost, TextIsMadeHarmless) {
  EXPECT_EQ(clean_text("  Tesla T4\n"), "Tesla T4");
  EXPECT_EQ(clean_text("a\x1b[2J\xff"), "a?[2J?");
  EXPECT_EQ(clean_text(std::string(10'000, 'x')).size(), 200);
}

TEST(CapturedHost, PciAddressesAsLinuxWritesThem) {
  const auto parsed = [](const char* text) {
    const auto address = parse_pci_address(text);
    return address ? address->value : "nothing";
  };
  EXPECT_EQ(parsed("00000000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(parsed("0000:3b:00.0"), "0000:3b:00.0");
  EXPECT_EQ(parsed("3b:1f.7"), "0000:3b:1f.7");
  EXPECT_EQ(parsed("00010000:3b:00.0"), "10000:3b:00.0") << "Intel's VMD has five digits";
  for (const char* const bad :
       {"", ":", "3b", "3b:00", "3b:00.8", "zz:00.0", "0000:3b:00.0:1", "000000000:3b:00.0"}) {
    EXPECT_EQ(parsed(bad), "nothing") << bad;
  }
}

TEST(CapturedHost, InventedUuidsAreSteadyAndApart) {
  EXPECT_EQ(invented_uuid("a/0"), invented_uuid("a/0"));
  std::set<std::string> seen;
  for (int i = 0; i < 10'000; ++i)
    seen.insert(invented_uuid(cat("a/", i)).value);
  EXPECT_EQ(seen.size(), 10'000);
  EXPECT_THAT(
      invented_uuid("a/0").value,
      testing::MatchesRegex("GPU-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}"));
}

TEST(CapturedHost, CompletionInventsUuidsOfHealthyGpusOnly) {
  Host host{.name = "a", .gpus = {Gpu{.index = {0}}, Gpu{.index = {1}, .health = "GPU is lost"}}};
  complete_host(host, "f");
  EXPECT_EQ(host.gpus[0].uuid, invented_uuid("a/0"));
  EXPECT_EQ(host.gpus[1].uuid.value, "");
  EXPECT_EQ(host.gpu_note, "");
  Host bare{.name = "b"};
  complete_host(bare, "f");
  EXPECT_EQ(bare.gpu_note, "the inventory lists none");
}

TEST(CapturedHost, TwoGpusThatAreOneAreAnError) {
  const auto complete = [](Gpu a, Gpu b) {
    return error_of([&] {
      Host host{.name = "a", .gpus = {std::move(a), std::move(b)}};
      complete_host(host, "inventory f");
    });
  };
  EXPECT_EQ(complete({.index = {3}}, {.index = {3}}),
            "inventory f: expected each GPU index once, got 3 twice");
  EXPECT_THAT(complete({.index = {0}, .pci = {"x"}}, {.index = {1}, .pci = {"x"}}),
              HasSubstr("PCI address once"));
  EXPECT_THAT(complete({.index = {0}, .uuid = {"GPU-1"}}, {.index = {1}, .uuid = {"GPU-1"}}),
              HasSubstr("UUID once"));
}

TEST(CpuMask, KernelsAndHwlocsSpelling) {
  EXPECT_THAT(*parse_cpu_mask("00000000,0000000f"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(*parse_cpu_mask("00000001,00000000"), ElementsAre(32));
  EXPECT_THAT(*parse_cpu_mask("0x03000003"), ElementsAre(0, 1, 24, 25));
  EXPECT_THAT(*parse_cpu_mask("0x00000001,,0x80000000"), ElementsAre(31, 64))
      << "hwloc leaves zeros away";
  EXPECT_THAT(*parse_cpu_mask("0x0"), IsEmpty());
  for (const char* const bad : {"", "x", "0xf...f", "123456789", "-1", "0x0x1"})
    EXPECT_FALSE(parse_cpu_mask(bad)) << bad;
  EXPECT_FALSE(parse_cpu_mask(std::string(10'000, ',')));
}

TEST(DeviceTree, WhereWaysMeet) {
  DeviceTree tree(1);
  const size_t cpu = tree.add(DeviceTree::kRoot, LinkKind::phb);
  const size_t upper = tree.add(cpu, LinkKind::pix);
  const size_t lower = tree.add(upper, LinkKind::pix);
  const size_t a = tree.add(lower, LinkKind::pix);
  const size_t b = tree.add(lower, LinkKind::pix);
  const size_t c = tree.add(upper, LinkKind::pix);
  const size_t d = tree.add(cpu, LinkKind::pix);
  const size_t far = tree.add(tree.add(DeviceTree::kRoot, LinkKind::phb), LinkKind::pix);
  EXPECT_EQ(tree.link(a, a), LinkKind::self);
  EXPECT_EQ(tree.link(a, b), LinkKind::pix);
  EXPECT_EQ(tree.link(a, c), LinkKind::pxb);
  EXPECT_EQ(tree.link(c, a), LinkKind::pxb);
  EXPECT_EQ(tree.link(a, d), LinkKind::phb);
  EXPECT_EQ(tree.link(a, far), LinkKind::sys);
}

}  // namespace
}  // namespace muster
