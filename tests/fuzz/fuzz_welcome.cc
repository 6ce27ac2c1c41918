#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "muster/shm/welcome.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/support/send_descriptor.h"

namespace muster {

namespace {

constexpr int kRanks = 2;

// Sends the text as another program would in rank 0's place, beside memory of so many bytes.
void send_text(int to, const std::string& text, off_t memory_bytes) {
  const Fd memory(::memfd_create("fuzz", MFD_CLOEXEC));
  if (!memory.valid() || ::ftruncate(memory.get(), memory_bytes) != 0)
    std::abort();
  std::string bytes = text;
  send_descriptor(to, bytes.data(), bytes.size(), memory.get());
}

// What is taken lies within the memory, in whole pages.
void check_layout(const shm::Layout& layout, off_t memory_bytes) {
  const size_t size = memory_bytes;
  const size_t page = shm::page_bytes();
  const bool is_whole = layout.arenas() % page == 0 && layout.arena_bytes % page == 0;
  if (!is_whole || layout.size != kRanks || layout.total() > size ||
      layout.arenas() > layout.total())
    std::abort();
}

}  // namespace

// What comes over the socket by which the ranks of a host come to share memory.
void fuzz_welcome(const std::string& text) {
  for (const off_t memory_bytes : {off_t{0}, off_t{4096}, off_t{1} << 30, off_t{1} << 62}) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      std::abort();
    Fd from(ends[0]);
    const Fd to(ends[1]);
    send_text(from.get(), text, memory_bytes);
    from.reset();
    shm::Welcome welcome;
    const Fd memory = shm::receive_memory(to.get(), welcome);
    if (memory.valid())
      answer_or_error(
          [&] { check_layout(shm::checked_layout(welcome, memory, kRanks), memory_bytes); });
  }
}

}  // namespace muster
