#include "muster/launch/port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::HasSubstr;

// An IPv4 socket bound to `port` of loopback; invalid with errno when that is refused.
Fd bound(int port, bool reuse) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (reuse)
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return {};
  return fd;
}

int port_of(const Fd& fd) {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

std::string refusal(int port) {
  try {
    const PortReservation reservation(port);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PortReservation, RefusesOrdinaryBindsAndLetsRankZeroListen) {
  const PortReservation reservation(0);
  EXPECT_GT(reservation.port(), 0);
  EXPECT_FALSE(bound(reservation.port(), false).valid());
  EXPECT_EQ(errno, EADDRINUSE);
  for (int restart = 0; restart < 2; ++restart) {
    const Fd rank_zero = bound(reservation.port(), true);
    ASSERT_TRUE(rank_zero.valid());
    EXPECT_EQ(::listen(rank_zero.get(), 16), 0);
  }
}

TEST(PortReservation, TakesTheGivenPortAndGivesItBack) {
  int port = 0;
  {
    const PortReservation any(0);
    port = any.port();
  }
  const PortReservation given(port);
  EXPECT_EQ(given.port(), port);
}

TEST(PortReservation, NamesTheListener) {
  const Fd listener = bound(0, true);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const std::string text = refusal(port_of(listener));
  EXPECT_THAT(
      text,
      HasSubstr(cat("got ", port_of(listener), ", which is in use by process ", ::getpid(), " (")));
}

TEST(PortReservation, TwoJobsDoNotShareOne) {
  const PortReservation first(0);
  EXPECT_THAT(refusal(first.port()), HasSubstr("in use"));
}

// The remains of closed connections keep an ordinary bind out for a minute, but not a restarted
// job.
TEST(PortReservation, TakesAPortWithOldConnections) {
  Fd listener = bound(0, true);
  const int port = port_of(listener);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  Fd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  server.reset();  // who closes first keeps the TIME_WAIT
  client.reset();
  listener.reset();
  ASSERT_FALSE(bound(port, false).valid()) << "no TIME_WAIT was left";
  EXPECT_EQ(refusal(port), "");
}

TEST(PortReservation, RefusesWhatIsNoPort) {
  EXPECT_THAT(refusal(65536), HasSubstr("expected a port from 1 to 65535, got 65536"));
  EXPECT_THAT(refusal(-1), HasSubstr("got -1"));
}

TEST(MasterAddress, MustBeHere) {
  EXPECT_NO_THROW(check_master_address("localhost"));
  EXPECT_NO_THROW(check_master_address("127.0.0.1"));
  const auto text_of = [](const std::string& address) {
    try {
      check_master_address(address);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(text_of("no-such-host.invalid"), HasSubstr("does not resolve"));
  EXPECT_THAT(text_of("192.0.2.1"), HasSubstr("belongs to another host"));
}

}  // namespace
}  // namespace muster
