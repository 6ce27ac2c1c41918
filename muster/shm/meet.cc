// Rank 0 makes the memory, listens on an abstract unix socket and writes its name into the store.
// Every other rank connects, sends its number, and gets the layout with the memory's descriptor.
// What comes over the store and the socket may be another program's, and is checked before it is
// used. Where rank 0 fails it says so in the store, or in the memory to those who have it already.
#include "muster/shm/meet.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/indices_of.h"
#include "muster/base/random_bytes.h"
#include "muster/base/strings.h"
#include "muster/shm/arrivals.h"
#include "muster/shm/futex.h"
#include "muster/shm/welcome.h"

namespace muster::shm {

namespace {

constexpr auto kKey = "shm";
constexpr std::string_view kNamePrefix = "muster-";
constexpr size_t kMostOfError = 500;  // that is shown of what rank 0 leaves in the store
constexpr size_t kNameBytes = 16;     // random ones, in hexadecimal

// The store has foreign text: under torchrun, whoever reaches PyTorch's store can write there.
void check_name(const std::string& name) {
  const bool fits =
      name.size() == kNamePrefix.size() + 2 * kNameBytes && name.starts_with(kNamePrefix);
  if (fits && name.find_first_not_of(kHexDigits, kNamePrefix.size()) == std::string::npos)
    return;
  throw invalid_argument("shared memory: expected the name of rank 0's socket in the store, got ",
                         name.size(),
                         " bytes of something else; another program writes into this job's store");
}

// An abstract address needs no file that could be left behind. check_name() allows the name.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return offsetof(sockaddr_un, sun_path) + 1 + name.size();
}

Fd unix_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    fail_errno("shared memory: cannot make a socket", errno);
  return fd;
}

// False when the deadline has come first.
bool wait_readable(int fd, const Deadline& deadline) {
  pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    const int rc = ::poll(&poll, 1, poll_timeout(deadline.left()));
    if (rc > 0)
      return true;
    if (rc < 0 && errno != EINTR)
      fail_errno("shared memory: poll", errno);
    if (deadline.passed())
      return false;
  }
}

// Ranks that have come already must not wait for the rest of the time.
void say_that_it_failed(const Met& met) {
  met.line(0).state = RankState::gave_up;
  for (int rank = 1; rank < met.layout.size; ++rank)
    ring(met.line(rank).bell);
}

// The layout with arenas so small that this process can have them. Where the wish is too much, what
// there is must serve the program too, and other teams: a team takes a quarter of it at most.
Layout fitting(Layout wish) {
  if (SharedMemory::has_room(wish.total()))
    return wish;
  while (wish.arena_bytes > kLeastArena && !SharedMemory::has_room(wish.total()))
    wish.arena_bytes = Layout::pages(wish.arena_bytes / 2);
  wish.arena_bytes = Layout::pages(std::max(wish.arena_bytes / 4, kLeastArena));
  return wish;
}

// A socket that listens under a random name, and the name.
std::pair<Fd, std::string> listen_somewhere() {
  Fd listener = unix_socket();
  auto name = cat(kNamePrefix, to_hex(random_bytes(kNameBytes)));
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    fail_errno("shared memory: cannot listen", errno);
  }
  return {std::move(listener), std::move(name)};
}

// Rank 0's part. Its listener goes when all have come, or none will.
Met host(const Exchange& exchange, int size, milliseconds timeout) {
  const Deadline deadline(timeout);
  Met met{.layout = fitting(layout_for(size)), .memory = nullptr, .peers = {}};
  met.peers.resize(size);
  Fd listener;
  try {
    std::string name;
    std::tie(listener, name) = listen_somewhere();
    met.memory = std::make_shared<SharedMemory>(SharedMemory::make(met.layout.total()));
    met.memory->reserve(0, met.layout.channels());
    exchange.set(kKey, name);
  } catch (const Error& error) {
    exchange.set(kKey, cat("error ", error.message()));
    throw;
  }
  const Welcome welcome{.magic = kMagic,
                        .size = size,
                        .stage_bytes = met.layout.stage_bytes,
                        .arena_bytes = met.layout.arena_bytes};
  try {
    const auto send = [&](int to) {
      return send_memory(to, welcome, met.memory->fd());
    };
    met.peers = Arrivals(listener.get(), size, send).wait(deadline);
  } catch (...) {
    say_that_it_failed(met);
    throw;
  }
  return met;
}

[[noreturn]] void fail_for_silence() {
  throw Error(ErrorCode::peer_failed,
              "shared memory: expected rank 0 to answer, got nothing; it ended, or is on another "
              "host or in another network namespace (MUSTER_HOST_ID says who shares one)");
}

// The name of rank 0's socket, from the store. Throws what rank 0 has left there instead.
std::string name_of_socket(const Exchange& exchange) {
  std::string name = exchange.get(kKey);
  if (name.starts_with("error "))
    throw unavailable(escaped(name.substr(6), kMostOfError), " (rank 0)");
  check_name(name);
  return name;
}

// A connection to rank 0, which runs as the same user. SO_SNDTIMEO limits connect() too.
Fd connect_to(const std::string& name, milliseconds timeout) {
  Fd socket = unix_socket();
  const timeval patience{.tv_sec = timeout.count() / 1000 + 1, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    fail_for_silence();
  if (!is_of_this_user(socket.get()))
    throw failed_precondition(
        "shared memory: expected rank 0 to run as the same user, got another user; start "
        "all ranks as one user");
  return socket;
}

// Every other rank's part. layout_for() throws on every rank what it throws on rank 0.
Met join_host(const Exchange& exchange, int rank, int size, milliseconds timeout) {
  const Deadline deadline(timeout);
  layout_for(size);
  Fd socket = connect_to(name_of_socket(exchange), timeout);
  const int32_t mine = rank;
  if (::send(socket.get(), &mine, sizeof(mine), MSG_NOSIGNAL) < 0 ||
      !wait_readable(socket.get(), deadline))
    fail_for_silence();
  Welcome welcome;
  Fd memory = receive_memory(socket.get(), welcome);
  if (!memory.valid())
    fail_for_silence();
  Met met{.layout = fitting(checked_layout(welcome, memory, size)), .memory = nullptr, .peers = {}};
  met.memory =
      std::make_shared<SharedMemory>(SharedMemory::map(std::move(memory), met.layout.total()));
  met.peers.resize(size);
  met.peers[0] = std::move(socket);
  return met;
}

}  // namespace

void Met::agree_on_arenas() {
  for (const int rank : indices_below(layout.size))
    layout.arena_bytes = std::min<size_t>(layout.arena_bytes, line(rank).arena_bytes);
  memory->keep_first(layout.total());
}

Met meet(const Exchange& exchange, int rank, int size, milliseconds timeout) {
  return rank == 0 ? host(exchange, size, timeout) : join_host(exchange, rank, size, timeout);
}

}  // namespace muster::shm
