#include "muster/shm/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/base/error.h"

namespace muster::shm {
namespace {

const size_t kPage = ::sysconf(_SC_PAGESIZE);

size_t bytes_held(const SharedMemory& memory) {
  struct stat info{};
  ::fstat(memory.fd(), &info);
  return info.st_blocks * 512;
}

TEST(Arena, BuffersDoNotOverlapAndGiveThemselvesBack) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::make(256 * kPage));
  Arena arena(memory, kPage, 255 * kPage);
  auto a = arena.allocate(10);
  auto b = arena.allocate(kPage + 1000);
  auto c = arena.allocate(1);
  EXPECT_EQ(a.get(), memory->data() + kPage);
  EXPECT_EQ(b.get(), memory->data() + 2 * kPage);
  EXPECT_EQ(c.get(), memory->data() + 4 * kPage);
  EXPECT_EQ(bytes_held(*memory), 4 * kPage);
  *b = std::byte{1};
  b.reset();
  EXPECT_EQ(bytes_held(*memory), 2 * kPage);
  a.reset();
  auto d = arena.allocate(3 * kPage);
  EXPECT_EQ(d.get(), memory->data() + kPage) << "two that lay side by side are one";
  EXPECT_EQ(d.get()[kPage], std::byte{0}) << "zeroed";
  c.reset();
  d.reset();
  EXPECT_EQ(bytes_held(*memory), 0);
  EXPECT_EQ(arena.allocate(255 * kPage).get(), memory->data() + kPage);
}

// Else the kernel would neither give one back alone nor map one anew in a forked child.
TEST(Arena, NoneSharesAPageOfTheKernelWithAnother) {
  for (const int ranks : {1, 2, 3, 256}) {
    const Layout layout = layout_for(ranks);
    EXPECT_EQ(layout.arenas() % kPage, 0) << ranks;
    EXPECT_EQ(layout.arena_bytes % kPage, 0) << ranks;
    EXPECT_EQ(layout.channels() % kPage, 0) << ranks;
  }
}

// As a data loader's worker that inherits a model with its gradients.
TEST(Arena, WhatAForkedChildWritesAndFreesIsItsOwn) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::make(256 * kPage));
  Arena arena(memory, kPage, 255 * kPage);
  auto a = arena.allocate(3 * kPage), b = arena.allocate(10);
  a.get()[kPage + 1000] = std::byte{1};
  *b = std::byte{2};
  const pid_t child = ::fork();
  if (child == 0) {
    const bool inherited = a.get()[kPage + 1000] == std::byte{1} && *b == std::byte{2};
    a.get()[kPage + 1000] = *b = std::byte{3};
    const bool wrote = a.get()[kPage + 1000] == std::byte{3} && *b == std::byte{3};
    a.reset();
    b.reset();
    ::_exit(inherited && wrote ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(a.get()[kPage + 1000], std::byte{1});
  EXPECT_EQ(*b, std::byte{2});
  EXPECT_EQ(bytes_held(*memory), 4 * kPage);
}

TEST(Arena, FullIsAnError) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::make(3 * kPage));
  Arena arena(memory, 0, 3 * kPage);
  const auto a = arena.allocate(2 * kPage);
  EXPECT_THROW(arena.allocate(kPage + 1), Error);
  EXPECT_NO_THROW(arena.allocate(kPage));
}

TEST(Arena, ABufferOutlivesIt) {
  std::shared_ptr<std::byte> buffer;
  {
    auto memory = std::make_shared<SharedMemory>(SharedMemory::make(kPage));
    buffer = Arena(memory, 0, kPage).allocate(kPage);
  }
  buffer.get()[kPage - 1] = std::byte{3};
  EXPECT_EQ(buffer.get()[kPage - 1], std::byte{3});
}

}  // namespace
}  // namespace muster::shm
