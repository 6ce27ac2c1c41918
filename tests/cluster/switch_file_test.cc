#include "muster/cluster/switch_file.h"

#include <gmock/gmock.h>

#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

std::string refusal_of_network(const std::string& text) {
  try {
    parse_switch_file(text, "f");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "it was taken";
}

TEST(SwitchFile, SlurmsTree) {
  const auto paths = parse_switch_file(
      "# as slurm.conf's TopologyPlugin=topology/tree reads it\n"
      "SwitchName=spine Switches=leaf[1-2]\n"
      "switchname=leaf1 nodes=a[1-2],b LinkSpeed=100\r\n"
      "SwitchName=leaf2\tNodes=a3\n",
      "f");
  EXPECT_THAT(paths,
              UnorderedElementsAre(Pair("a1", ElementsAre("spine", "leaf1")),
                                   Pair("a2", ElementsAre("spine", "leaf1")),
                                   Pair("b", ElementsAre("spine", "leaf1")),
                                   Pair("a3", ElementsAre("spine", "leaf2"))));
}

TEST(SwitchFile, SlurmsBlocks) {
  const auto paths = parse_switch_file(
      "BlockName=b1 Nodes=a[1-2]\nBlockName=b2 Nodes=a[3-4]\nBlockSizes=2,4\n", "f");
  EXPECT_THAT(paths.at("a2"), ElementsAre("b1"));
  EXPECT_THAT(paths.at("a4"), ElementsAre("b2"));
}

TEST(SwitchFile, AHostALine) {
  const auto paths =
      parse_switch_file("\xEF\xBB\xBF# host switches\na  s/l1\n\nb\ts/l2 # new\n", "f");
  EXPECT_THAT(
      paths,
      UnorderedElementsAre(Pair("a", ElementsAre("s", "l1")), Pair("b", ElementsAre("s", "l2"))));
}

TEST(SwitchFile, WhatIsNoNetworkIsRefused) {
  EXPECT_THAT(refusal_of_network(""), HasSubstr("--topology f:1: expected hosts, as in"));
  EXPECT_THAT(refusal_of_network("SwitchName=s Switches=l\n"), HasSubstr("expected hosts"));
  EXPECT_THAT(refusal_of_network("a\n"), HasSubstr("f:1: expected a host and its switches"));
  EXPECT_THAT(refusal_of_network("a s//l\n"), HasSubstr("got 's//l'"));
  EXPECT_THAT(refusal_of_network("a s\nb s\na t\n"),
              HasSubstr("f:3: expected each host once, got 'a'"));
  EXPECT_THAT(refusal_of_network("SwitchName=s Nodes=a\nSwitchName=t Nodes=a\n"),
              HasSubstr("f:2: expected each host and switch below one switch, got 'a'"));
  EXPECT_THAT(refusal_of_network("SwitchName=s Switches=t\nSwitchName=t Switches=s Nodes=a\n"),
              HasSubstr("f:2: expected switches that are not below themselves"));
  EXPECT_THAT(refusal_of_network("a s/l\nSwitchName=t Nodes=a\n"),
              HasSubstr("f:2: expected each host once, got 'a'"));
  EXPECT_THAT(refusal_of_network("SwitchName=s\n"), HasSubstr("a switch and what is below it"));
  EXPECT_THAT(refusal_of_network("Nodes=a\n"), HasSubstr("a switch and what is below it"));
  EXPECT_THAT(refusal_of_network("SwitchName=s Nodes=a[1-\n"), HasSubstr("names as in a[1-3,5],b"));
  EXPECT_THAT(refusal_of_network("SwitchName=s Nodes=\n"), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(refusal_of_network("SwitchName=s Nodes=a[0-999999999]\n"), HasSubstr("names as in"));
}

}  // namespace
}  // namespace muster
