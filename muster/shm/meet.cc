#include "muster/shm/meet.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/random_bytes.h"
#include "muster/base/strings.h"
#include "muster/shm/arrivals.h"
#include "muster/shm/futex.h"

namespace muster::shm {

namespace {

constexpr const char* kKey = "shm";
constexpr std::string_view kNamePrefix = "muster-";
constexpr size_t kMostOfError = 500;  // that rank 0 leaves in the store
constexpr size_t kNameBytes = 16;     // random ones, in hexadecimal

// What rank 0 sends beside the memory itself.
struct Welcome {
  uint64_t magic = 0;
  int32_t size = 0;
  int32_t reserved = 0;
  uint64_t stage_bytes = 0;
  uint64_t arena_bytes = 0;
};

// What the store has is foreign text: under torchrun, whoever reaches PyTorch's store can write
// there.
void check_name(const std::string& name) {
  const bool fits =
      name.size() == kNamePrefix.size() + 2 * kNameBytes && name.starts_with(kNamePrefix);
  if (fits && name.find_first_not_of(kHexDigits, kNamePrefix.size()) == std::string::npos)
    return;
  throw Error(ErrorCode::invalid_argument,
              cat("shared memory: expected the name of rank 0's socket in the store, got ",
                  name.size(),
                  " bytes of something else; another program writes into this job's store"));
}

// An abstract name, one of check_name's: there is no file that could be left behind.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
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
    const int rc =
        ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(deadline.left().count(), 60'000)));
    if (rc > 0)
      return true;
    if (rc < 0 && errno != EINTR)
      fail_errno("shared memory: poll", errno);
    if (deadline.passed())
      return false;
  }
}

// False: it has gone.
bool send_memory(int to, const Welcome& welcome, int memory_fd) {
  iovec data{.iov_base = const_cast<Welcome*>(&welcome), .iov_len = sizeof(welcome)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory_fd, sizeof(int));
  return ::sendmsg(to, &message, MSG_NOSIGNAL) >= 0;
}

// Nothing came: the sender has gone.
Fd receive_memory(int from, Welcome& welcome) {
  iovec data{.iov_base = &welcome, .iov_len = sizeof(welcome)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = n == sizeof(welcome) ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS)
    return Fd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return Fd(fd);
}

// How the memory is laid out is what rank 0 says, and how much of it there is what the kernel says.
void check_memory(const Fd& memory, const Layout& layout) {
  struct stat info = {};
  const bool known = ::fstat(memory.get(), &info) == 0;
  const size_t size = known ? static_cast<size_t>(info.st_size) : 0;
  const size_t most = size / layout.ranks();  // so that nothing overflows
  if (layout.stage_bytes <= most && layout.arena_bytes <= most && layout.total() <= size)
    return;
  throw Error(ErrorCode::invalid_argument,
              cat("shared memory: expected as much memory as rank 0 says, got ",
                  size,
                  " bytes; another program answers in its place"));
}

// Those who have come already must not wait for the rest of the time.
void say_that_it_failed(const Met& met) {
  Line& mine = *reinterpret_cast<Line*>(met.memory->data() + met.layout.line(0));
  mine.state = RankState::gave_up;
  for (int rank = 1; rank < met.layout.size; ++rank) {
    Line& line = *reinterpret_cast<Line*>(met.memory->data() + met.layout.line(rank));
    line.bell.fetch_add(1);
    futex_wake_all(line.bell);
  }
}

Met host(const Exchange& exchange, int size, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  Met met{.layout = layout_for(size), .memory = nullptr, .peers = {}};
  met.peers.resize(static_cast<size_t>(size));
  Fd listener;
  try {
    listener = unix_socket();
    const std::string name = cat(kNamePrefix, to_hex(random_bytes(kNameBytes)));
    sockaddr_un address;
    const socklen_t length = abstract_address(name, address);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(listener.get(), SOMAXCONN) != 0) {
      fail_errno("shared memory: cannot listen", errno);
    }
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

Met join_host(const Exchange& exchange, int rank, int size, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  layout_for(size);  // throws on every rank what it throws on rank 0
  const std::string name = exchange.get(kKey);
  if (name.starts_with("error "))
    throw Error(ErrorCode::unavailable, cat(escaped(name.substr(6), kMostOfError), " (rank 0)"));
  check_name(name);
  Fd socket = unix_socket();
  const timeval patience{.tv_sec = timeout.count() / 1000 + 1, .tv_usec = 0};
  ::setsockopt(
      socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));  // of connect, too
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  const auto gone = [] {
    return Error(ErrorCode::peer_failed,
                 "shared memory: expected rank 0 to answer, got nothing; it ended, or is on "
                 "another host or in "
                 "another network namespace (MUSTER_HOST_ID says who shares one)");
  };
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw gone();
  if (!of_this_user(socket.get()))
    throw Error(
        ErrorCode::failed_precondition,
        "shared memory: expected rank 0 to run as the same user, got another user; start all ranks "
        "as one user");
  const int32_t mine = rank;
  Welcome welcome;
  if (::send(socket.get(), &mine, sizeof(mine), MSG_NOSIGNAL) < 0 ||
      !wait_readable(socket.get(), deadline))
    throw gone();
  Fd memory = receive_memory(socket.get(), welcome);
  if (!memory.valid())
    throw gone();
  if (welcome.magic != kMagic || welcome.size != size) {
    throw Error(ErrorCode::invalid_argument,
                cat("shared memory: expected rank 0 to have the same muster and ",
                    size,
                    " ranks, got ",
                    welcome.size,
                    welcome.magic == kMagic ? "" : " and another version"));
  }
  Met met{.layout = {.size = size,
                     .stage_bytes = welcome.stage_bytes,
                     .arena_bytes = welcome.arena_bytes},
          .memory = nullptr,
          .peers = {}};
  check_memory(memory, met.layout);
  met.memory =
      std::make_shared<SharedMemory>(SharedMemory::map(std::move(memory), met.layout.total()));
  met.peers.resize(static_cast<size_t>(size));
  met.peers[0] = std::move(socket);
  return met;
}

}  // namespace

Met meet(const Exchange& exchange, int rank, int size, std::chrono::milliseconds timeout) {
  return rank == 0 ? host(exchange, size, timeout) : join_host(exchange, rank, size, timeout);
}

}  // namespace muster::shm
