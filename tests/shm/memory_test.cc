#include "muster/shm/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "muster/base/error.h"

namespace muster::shm {
namespace {

int64_t blocks_of(const SharedMemory& memory) {
  struct stat info {};
  ::fstat(memory.fd(), &info);
  return info.st_blocks * 512;
}

TEST(SharedMemory, ExistsOnlyWhereItWasReserved) {
  SharedMemory memory = SharedMemory::make(size_t{1} << 36);
  EXPECT_EQ(blocks_of(memory), 0) << "64 GiB of addresses cost nothing";
  memory.reserve(8192, 1 << 20);
  EXPECT_EQ(blocks_of(memory), 1 << 20);
  memory.data()[8192] = std::byte{7};
  memory.release(8192, 1 << 20);
  EXPECT_EQ(blocks_of(memory), 0);
  memory.reserve(8192, 4096);
  EXPECT_EQ(memory.data()[8192], std::byte{0});
}

TEST(SharedMemory, IsTheSameForWhoeverMapsIt) {
  SharedMemory memory = SharedMemory::make(4096);
  memory.reserve(0, 4096);
  const SharedMemory other = SharedMemory::map(Fd(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)), 4096);
  memory.data()[17] = std::byte{42};
  EXPECT_EQ(other.data()[17], std::byte{42});
}

// A core dump reads all that it writes, and so would allocate the whole mapping.
TEST(SharedMemory, IsLeftOutOfCoreDumps) {
  const SharedMemory memory = SharedMemory::make(8192);
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(memory.data()) << '-';
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(begin.str())) found = true;
    if (!found || !line.starts_with("VmFlags:")) continue;
    EXPECT_NE(line.find(" dd"), std::string::npos) << line;
    return;
  }
  ADD_FAILURE() << "no mapping at " << begin.str();
}

TEST(SharedMemory, CannotBeCutUnderItsUsers) {
  const SharedMemory memory = SharedMemory::make(8192);
  EXPECT_NE(::ftruncate(memory.fd(), 4096), 0);
}

TEST(SharedMemory, MoreThanThereIsIsAnError) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "16 TiB of addresses: the sanitizer has them";
#endif
  SharedMemory memory = SharedMemory::make(size_t{1} << 44);
  try {
    memory.reserve(0, size_t{1} << 44);
    FAIL() << "16 TiB were reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_NE(error.message().find("expected 16.0 TiB to be free"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace muster::shm
