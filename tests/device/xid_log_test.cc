#include "muster/device/xid_log.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* kLog =
    "6,1,100,-;usb 1-1: new device\n"
    "3,2,200,-;NVRM: Xid (PCI:0000:3B:00): 79, pid=1234, GPU has fallen off the bus.\n"
    " SUBSYSTEM=pci\n"
    "3,3,300,-;NVRM: Xid (PCI:0001:c1:00.0): 31, MMU \033[31mfault\n"
    "3,4,400,-;NVRM: Xid (PCI:0000:3b:00): , nothing\n"
    "NVRM: Xid (PCI:0000:3b:00): 48\n"
    "3,5,500,-;NVRM: Xid (PCI:0000:3b:00";

TEST(XidLog, RecordsOfTheDriverAreRead) {
  EXPECT_THAT(xid_errors_in(kLog),
              ElementsAre(XidError{.pci = {"0000:3b:00.0"},
                                   .number = 79,
                                   .text = "pid=1234, GPU has fallen off the bus.",
                                   .at_microseconds = 200},
                          XidError{.pci = {"0001:c1:00.0"},
                                   .number = 31,
                                   .text = "MMU ?[31mfault",
                                   .at_microseconds = 300}));
}

TEST(XidLog, OnlyWhatCameSinceThen) {
  const ScratchFolder folder;
  const std::string path = folder.write("kmsg", kLog);
  EXPECT_EQ(read_xid_errors(0, path).size(), 2U);
  EXPECT_EQ(read_xid_errors(201, path).size(), 1U);
  EXPECT_THAT(read_xid_errors(0, folder.path() + "/none"), IsEmpty()) << "few may read it";
}

// docs/faults.md lists these numbers, and no others make a GPU bad.
TEST(XidLog, WhatAProgramCausesIsNoBadHardware) {
  std::vector<int> of_hardware;
  for (int number = 0; number < 1000; ++number)
    if (is_of_hardware({.number = number}))
      of_hardware.push_back(number);
  EXPECT_THAT(of_hardware, ElementsAre(48, 64, 74, 79, 92, 95, 119, 120, 140));
}

}  // namespace
}  // namespace muster
