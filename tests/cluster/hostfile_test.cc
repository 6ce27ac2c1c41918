#include "muster/cluster/hostfile.h"

#include <gmock/gmock.h>

#include <functional>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "it was taken";
}

TEST(HostList, NamesWithAndWithoutNumbers) {
  EXPECT_THAT(parse_host_list("a:4, b ,me@c:1", "--hosts"),
              ElementsAre(HostSpec{"a", 4}, HostSpec{"b", {}}, HostSpec{"me@c", 1}));
  EXPECT_THAT(parse_host_list("10.0.0.1:2,[fe80::1]:3,::1", "--hosts"),
              ElementsAre(HostSpec{"10.0.0.1", 2}, HostSpec{"fe80::1", 3}, HostSpec{"::1", {}}));
}

TEST(HostList, WhatCannotBeAHostIsRefused) {
  for (const char* text : {"",      "a,",  "a:0",       "a:-1",     "a:many",  "-oProxyCommand=x",
                           "a;b",   "a b", "$(x)",      "[fe80::1", "[::1]x4", "[::1]4",
                           "[a]:2", "[]",  "::1:70000", "a:b:2",    "a:1:2",   "2",
                           "2:4",   "1.5", "0x10",      "010.0.0.1"}) {
    EXPECT_THAT(refusal_of([&] { parse_host_list(text, "--hosts"); }),
                HasSubstr("--hosts: expected"))
        << text;
  }
  EXPECT_THAT(refusal_of([] { parse_host_list("a,b,a:2", "--hosts"); }), HasSubstr("'a' again"));
}

// A number alone is none of the ranks, and none of a host either.
TEST(HostList, WhatIsNearlyRightIsToldTheRule) {
  const auto refused = [](const char* text) {
    return refusal_of([&] { parse_host_list(text, "--hosts"); });
  };
  EXPECT_EQ(refused("a:2000000"),
            "--hosts: expected a number of ranks from 1 to 1000000, got '2000000' in 'a:2000000'");
  EXPECT_EQ(refused("2"),
            "--hosts: expected a name or a whole address ('2' would mean 0.0.0.2), got '2' in '2'");
  EXPECT_THAT(refused("b,010.0.0.1:4"), HasSubstr("('010.0.0.1' would mean 8.0.0.1)"));
  EXPECT_EQ(refused("a,::1:4"),
            "--hosts: expected an IPv6 address in brackets before a number of ranks, as in "
            "[::1]:4, got '::1:4' in 'a,::1:4'");
  EXPECT_EQ(refusal_of([] { parse_hostfile("fe80::2\n::1:4\n", "f"); }),
            "f:2: expected an IPv6 address in brackets before a number of ranks, as in [::1]:4, "
            "got '::1:4'");
  EXPECT_EQ(refusal_of([] { parse_hostfile("a max_slots=1 slots=2\n", "f"); }),
            "f:1: expected no more slots than max_slots, got 'slots=2 max_slots=1'");
  EXPECT_EQ(parse_hostfile("a slots=2 max_slots=0\n", "f").size(), 1U);
  for (const char* const wrong :
       {"max_slots=2x", "max_slots=", "max-slots=-3", "max_slots=1.5", "max_slots=99999999999"}) {
    EXPECT_EQ(refusal_of([&] { parse_hostfile(cat("\na ", wrong, "\n"), "f"); }),
              cat("f:2: expected a number of slots at most, or 0 for no limit, got '", wrong, "'"));
  }
  EXPECT_EQ(refusal_of([] { parse_hostfile("a max_slots=1 max_slots=0\n", "f"); }),
            "f:1: expected a host as in 'a slots=4' or 'a:4', got 'max_slots=0'");
  const std::string of_many_words =
      refusal_of([] { parse_hostfile(std::string(9'999, ';'), "f"); });
  EXPECT_LT(of_many_words.size(), 400U);
  EXPECT_LT(refused(std::string(9'999, 'x').c_str()).size(), 800U);
  EXPECT_THAT(refused("a b"), HasSubstr("expected names with numbers of ranks as in a:4,b:8"));
  EXPECT_EQ(refusal_of([] { parse_hostfile("a\nb slots=2000000\n", "f\ng"); }),
            "f?g:2: expected a number of ranks from 1 to 1000000, got '2000000'");
}

TEST(Hostfile, TheFormsOfMpirunAndDeepSpeed) {
  const auto hosts = parse_hostfile(
      "# all of them\n\na slots=4\n b:2 # mpich\nc\tslots=1 max_slots=8\nd\na slots=2\n", "f");
  EXPECT_THAT(hosts,
              ElementsAre(HostSpec{"a", 6}, HostSpec{"b", 2}, HostSpec{"c", 1}, HostSpec{"d", {}}));
}

TEST(Hostfile, AsEditorsOfOtherSystemsWriteIt) {
  const auto hosts = parse_hostfile(
      "\xef\xbb\xbf"
      "a slots=4\r\nb\r\n",
      "f");
  EXPECT_THAT(hosts, ElementsAre(HostSpec{"a", 4}, HostSpec{"b", {}}));
}

// In quadratic time this would take minutes.
TEST(Hostfile, AHundredThousandHosts) {
  constexpr int kHosts = 100'000;
  std::string text;
  for (int i = 0; i < kHosts; ++i)
    text += cat("host", i, " slots=8\n");
  const auto hosts = parse_hostfile(text + text, "f");
  ASSERT_EQ(hosts.size(), kHosts);
  EXPECT_EQ(hosts.back(), (HostSpec{"host99999", 16}));
}

TEST(Hostfile, ErrorsNameTheLine) {
  EXPECT_THAT(refusal_of([] { parse_hostfile("a\nb slots=x\n", "my.txt"); }),
              HasSubstr("my.txt:2"));
  EXPECT_THAT(refusal_of([] { parse_hostfile("a\nb gpus=2\n", "my.txt"); }), HasSubstr("'gpus=2'"));
  for (const char* text : {"a:4 slots=2", "a slots=4 slots=2", "a:4 slots=4"}) {
    EXPECT_THAT(
        refusal_of([&] { parse_hostfile(text, "my.txt"); }),
        HasSubstr("my.txt:1: expected a host as in 'a slots=4' or 'a:4', got 'a with 4 and"))
        << text;
  }
  EXPECT_THAT(refusal_of([] { parse_hostfile("# nothing\n", "my.txt"); }), HasSubstr("got none"));
}

}  // namespace
}  // namespace muster
