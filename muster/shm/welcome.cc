// One message of a unix socket carries a Welcome and, beside it, the memory's descriptor.
#include "muster/shm/welcome.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "muster/base/error.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"

namespace muster::shm {

namespace {

constexpr size_t kMostBytes = size_t{1} << 60;

// A message of a Welcome and room for one descriptor beside it.
class WelcomeMessage : NoCopy {
 public:
  explicit WelcomeMessage(Welcome& welcome) : data_{&welcome, sizeof(welcome)} {
    message.msg_iov = &data_;
    message.msg_iovlen = 1;
    message.msg_control = control_;
    message.msg_controllen = sizeof(control_);
  }

  msghdr message{};

 private:
  iovec data_;
  alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
};

// Its stages depend on the number of ranks alone, and its parts are whole pages: else what lies
// behind them would have no address that an atomic may have.
void check_parts(const Layout& layout) {
  const size_t stage_bytes = layout_for(layout.size).stage_bytes;
  const bool is_whole = layout.arena_bytes == Layout::pages(layout.arena_bytes);
  if (layout.stage_bytes == stage_bytes && is_whole && layout.arena_bytes >= kLeastArena)
    return;
  throw invalid_argument("shared memory: expected from rank 0 stages of ",
                         stage_bytes,
                         " bytes and arenas of ",
                         kLeastArena,
                         " or more in whole pages, got ",
                         layout.stage_bytes,
                         " and ",
                         layout.arena_bytes,
                         "; another program answers in its place");
}

// Rank 0 says how the memory is laid out, and the kernel says how much of it there is. The parts
// are compared first, and nobody has more than kMostBytes, so that their sum does not overflow.
void check_memory(const Fd& memory, const Layout& layout) {
  struct stat info{};
  const bool known = ::fstat(memory.get(), &info) == 0;
  const size_t size = known ? std::min<size_t>(info.st_size, kMostBytes) : 0;
  const size_t most = size / layout.ranks();
  if (layout.stage_bytes <= most && layout.arena_bytes <= most && layout.total() <= size)
    return;
  throw invalid_argument("shared memory: expected as much memory as rank 0 says, got ",
                         size,
                         " bytes; another program answers in its place");
}

void check_welcome(const Welcome& welcome, int size) {
  if (welcome.magic == kMagic && welcome.size == size)
    return;
  throw invalid_argument("shared memory: expected rank 0 to have the same muster and ",
                         size,
                         " ranks, got ",
                         welcome.size,
                         welcome.magic == kMagic ? "" : " and another version");
}

}  // namespace

bool send_memory(int to, Welcome welcome, int memory_fd) {
  WelcomeMessage sent(welcome);
  cmsghdr* const header = CMSG_FIRSTHDR(&sent.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory_fd, sizeof(int));
  return ::sendmsg(to, &sent.message, MSG_NOSIGNAL) >= 0;
}

Fd receive_memory(int from, Welcome& welcome) {
  WelcomeMessage received(welcome);
  const ssize_t n = ::recvmsg(from, &received.message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = n > 0 ? CMSG_FIRSTHDR(&received.message) : nullptr;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
    return Fd();
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof(int));
  Fd memory(number);  // it is this process's now, whatever came with it
  if (n != sizeof(welcome) || (received.message.msg_flags & MSG_TRUNC) != 0)
    memory.reset();
  return memory;
}

Layout checked_layout(const Welcome& welcome, const Fd& memory, int size) {
  check_welcome(welcome, size);
  const Layout layout = {
      .size = size, .stage_bytes = welcome.stage_bytes, .arena_bytes = welcome.arena_bytes};
  check_memory(memory, layout);
  check_parts(layout);
  return layout;
}

}  // namespace muster::shm
