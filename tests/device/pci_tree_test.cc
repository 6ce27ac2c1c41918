#include "muster/device/pci_tree.h"

#include <gmock/gmock.h>

#include "muster/device/links.h"
#include "tests/device/pci_machine.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Two sockets. Under the first host bridge a switch with another one below it; a second bridge; a
// second socket.
class PciTree : public testing::Test {
 protected:
  PciTree() {
    add_pci_device(
        root_, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", 0, "0-3");
    add_pci_device(
        root_, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", 0, "0-3");
    add_pci_device(
        root_,
        "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0",
        0,
        "0-3");
    add_pci_device(root_, "pci0000:00/0000:00:02.0/0000:08:00.0", 0, "0-3");
    add_pci_device(root_, "pci0000:40/0000:40:01.0/0000:41:00.0", 0, "0-3");
    add_pci_device(root_, "pci0000:80/0000:80:01.0/0000:81:00.0", 1, "4-7");
    add_pci_device(root_, "pci0000:c0/0000:c0:01.0/0000:c1:00.0", -1, "0-7");
  }

  std::string link(const char* a, const char* b) {
    return to_string(
        pci_link(find_pci_place(root_.path(), {a}), find_pci_place(root_.path(), {b})));
  }

  ScratchFolder root_;
};

TEST_F(PciTree, PlaceOfADevice) {
  const PciPlace place = find_pci_place(root_.path(), {"0000:81:00.0"});
  EXPECT_EQ(place.numa_node, 1);
  EXPECT_EQ(place.near_cpus, "4-7");
  EXPECT_THAT(place.path, ElementsAre("pci0000:80", "0000:80:01.0", "0000:81:00.0"));
  EXPECT_EQ(find_pci_place(root_.path(), {"0000:c1:00.0"}).numa_node, std::nullopt);
}

TEST_F(PciTree, LinksByWhatIsBetween) {
  EXPECT_EQ(link("0000:03:00.0", "0000:04:00.0"), "PIX");
  EXPECT_EQ(link("0000:03:00.0", "0000:07:00.0"), "PXB");
  EXPECT_EQ(link("0000:07:00.0", "0000:03:00.0"), "PXB");
  EXPECT_EQ(link("0000:03:00.0", "0000:08:00.0"), "PHB");
  EXPECT_EQ(link("0000:03:00.0", "0000:41:00.0"), "NODE");
  EXPECT_EQ(link("0000:03:00.0", "0000:81:00.0"), "SYS");
  EXPECT_EQ(link("0000:03:00.0", "0000:c1:00.0"), "SYS")
      << "a node that nobody tells is taken as far";
}

TEST_F(PciTree, UnknownAndHostileAddresses) {
  EXPECT_EQ(link("0000:03:00.0", "0000:99:00.0"), "?");
  for (const char* const bad :
       {"", "..", "0000:03:00.0/../0000:81:00.0", "zzzz:03:00.0", "0000:03:00"}) {
    EXPECT_THAT(find_pci_place(root_.path(), {bad}).path, IsEmpty()) << bad;
  }
  root_.write("sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0/local_cpulist", "none of them\n");
  root_.write("sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0/numa_node", "99999999999\n");
  EXPECT_EQ(find_pci_place(root_.path(), {"0000:08:00.0"}).near_cpus, "");
  EXPECT_EQ(find_pci_place(root_.path(), {"0000:08:00.0"}).numa_node, std::nullopt);
}

TEST_F(PciTree, NetworkCards) {
  add_nic(root_, "infiniband", "mlx5_1", "pci0000:80/0000:80:01.0/0000:81:00.0");
  add_nic(root_, "infiniband", "mlx5_0", "pci0000:00/0000:00:02.0/0000:08:00.0");
  add_nic(root_, "net", "ib0", "pci0000:00/0000:00:02.0/0000:08:00.0");  // the same card as mlx5_0
  root_.write("sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/virtio3/x", "");
  add_nic(root_, "net", "eth0", "pci0000:40/0000:40:01.0/0000:41:00.0/virtio3");
  root_.write("sys/devices/virtual/net/lo/x", "");
  root_.link("sys/class/net/lo", "sys/devices/virtual/net/lo");
  EXPECT_THAT(find_nics(root_.path()),
              ElementsAre(Nic{"mlx5_0", {"0000:08:00.0"}, 0},
                          Nic{"mlx5_1", {"0000:81:00.0"}, 1},
                          Nic{"eth0", {"0000:41:00.0"}, 0}));
  EXPECT_THAT(find_nics("/nowhere"), IsEmpty());
}

}  // namespace
}  // namespace muster
