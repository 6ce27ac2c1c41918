#include "muster/cluster/host_rendezvous.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/store/socket.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string why_not(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.message();
  }
  return "it worked";
}

TEST(HostRendezvous, SomebodyElsesAddressIsNotServedHere) {
  EXPECT_EQ(address_to_serve("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_to_serve("localhost"), "127.0.0.1");
  EXPECT_EQ(address_to_serve("192.0.2.77"), "") << "an address of documentation, nobody's";
  EXPECT_THAT(why_not([] { address_to_serve("no-such-host.invalid"); }),
              HasSubstr("no-such-host.invalid"));
}

TEST(HostRendezvous, OffLoopbackASecretIsNeeded) {
  const ScratchFolder folder;
  const ClusterOptions options{.endpoint = "10.1.2.3:29400"};
  EXPECT_THAT(why_not([&] { cluster_secret(options, false); }), HasSubstr("muster secret"));
  ClusterOptions open = options;
  open.no_auth = true;
  EXPECT_TRUE(cluster_secret(open, false).empty());
  ClusterOptions given = options;
  given.secret_file = folder.path() + "/secret";
  write_file(given.secret_file, Secret::make().hex());
  EXPECT_THAT(why_not([&] { cluster_secret(given, false); }), HasSubstr("chmod 600"));
  ::chmod(given.secret_file.c_str(), 0600);
  EXPECT_FALSE(cluster_secret(given, false).empty());
  given.no_auth = true;
  EXPECT_THAT(why_not([&] { cluster_secret(given, false); }), HasSubstr("--no-auth"));
}

TEST(HostRendezvous, TheSecondAgentOfAMachineFindsTheFirst) {
  ClusterOptions options{.backend = "c10d", .endpoint = "127.0.0.1:0"};
  const HostRendezvous first = open_host_rendezvous(options);
  ASSERT_TRUE(first.server);
  options.endpoint = cat("127.0.0.1:", first.server->endpoint().port);
  const HostRendezvous second = open_host_rendezvous(options);
  EXPECT_FALSE(second.server);
  first.store->set("key", "value");
  EXPECT_EQ(second.store->get("key", std::chrono::seconds(1)), "value");
  EXPECT_EQ(second.address, "127.0.0.1");
}

TEST(HostRendezvous, NobodyThereIsAnErrorThatSaysSo) {
  ClusterOptions options{.node_rank = 1, .endpoint = "127.0.0.1:1"};
  options.join_timeout = std::chrono::milliseconds(300);
  EXPECT_THAT(why_not([&] { open_host_rendezvous(options); }),
              HasSubstr("expected the host that serves it at 127.0.0.1:1"));
  const std::string why = why_not([&] { open_host_rendezvous(options); });
  EXPECT_THAT(why, Not(HasSubstr("launcher"))) << "advice for ranks";
  // A name is looked up by somebody else, for which the last try must have time as well.
  options.endpoint = "localhost:1";
  EXPECT_THAT(why_not([&] { open_host_rendezvous(options); }), HasSubstr("refused"));
}

// A program that speaks no word has the port: it is named, as there is nobody else to wait for.
TEST(HostRendezvous, WhoHasThePortOfThisHostIsNamed) {
  Endpoint silent = {.host = "127.0.0.1"};
  const Fd listener = listen_on(silent, Deadline(std::chrono::seconds(60)));
  ClusterOptions options{.backend = "c10d", .endpoint = cat("127.0.0.1:", silent.port)};
  options.join_timeout = std::chrono::milliseconds(1);
  EXPECT_THAT(why_not([&] { open_host_rendezvous(options); }),
              AllOf(HasSubstr(cat("in use by process ", ::getpid())), HasSubstr("got none")));
}

}  // namespace
}  // namespace muster
