#include "muster/shm/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/base/error.h"

namespace muster::shm {
namespace {

int64_t bytes_held(const SharedMemory& memory) {
  struct stat info{};
  ::fstat(memory.fd(), &info);
  return info.st_blocks * 512;
}

TEST(Arena, BuffersDoNotOverlapAndGiveThemselvesBack) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::make(1 << 20));
  Arena arena(memory, 4096, (1 << 20) - 4096);
  auto a = arena.allocate(10);
  auto b = arena.allocate(5000);
  auto c = arena.allocate(1);
  EXPECT_EQ(a.get(), memory->data() + 4096);
  EXPECT_EQ(b.get(), memory->data() + 8192);
  EXPECT_EQ(c.get(), memory->data() + 16384);
  EXPECT_EQ(bytes_held(*memory), 4 * 4096);
  *b = std::byte{1};
  b.reset();
  EXPECT_EQ(bytes_held(*memory), 2 * 4096);
  a.reset();
  auto d = arena.allocate(3 * 4096);
  EXPECT_EQ(d.get(), memory->data() + 4096) << "two that lay side by side are one";
  EXPECT_EQ(d.get()[4096], std::byte{0}) << "zeroed";
  c.reset();
  d.reset();
  EXPECT_EQ(bytes_held(*memory), 0);
  EXPECT_EQ(arena.allocate((1 << 20) - 4096).get(), memory->data() + 4096);
}

// As a data loader's worker that inherits a model with its gradients.
TEST(Arena, WhatAForkedChildWritesAndFreesIsItsOwn) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::make(1 << 20));
  Arena arena(memory, 4096, (1 << 20) - 4096);
  auto a = arena.allocate(3 * 4096), b = arena.allocate(10);
  a.get()[5000] = std::byte{1};
  *b = std::byte{2};
  const pid_t child = ::fork();
  if (child == 0) {
    const bool inherited = a.get()[5000] == std::byte{1} && *b == std::byte{2};
    a.get()[5000] = *b = std::byte{3};
    const bool wrote = a.get()[5000] == std::byte{3} && *b == std::byte{3};
    a.reset();
    b.reset();
    ::_exit(inherited && wrote ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(a.get()[5000], std::byte{1});
  EXPECT_EQ(*b, std::byte{2});
  EXPECT_EQ(bytes_held(*memory), 4 * 4096);
}

TEST(Arena, FullIsAnError) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::make(3 * 4096));
  Arena arena(memory, 0, 3 * 4096);
  const auto a = arena.allocate(2 * 4096);
  EXPECT_THROW(arena.allocate(4097), Error);
  EXPECT_NO_THROW(arena.allocate(4096));
}

TEST(Arena, ABufferOutlivesIt) {
  std::shared_ptr<std::byte> buffer;
  {
    auto memory = std::make_shared<SharedMemory>(SharedMemory::make(4096));
    buffer = Arena(memory, 0, 4096).allocate(4096);
  }
  buffer.get()[4095] = std::byte{3};
  EXPECT_EQ(buffer.get()[4095], std::byte{3});
}

}  // namespace
}  // namespace muster::shm
