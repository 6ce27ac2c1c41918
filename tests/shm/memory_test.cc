#include "muster/shm/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster::shm {
namespace {

int64_t blocks_of(const SharedMemory& memory) {
  struct stat info{};
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
    if (line.starts_with(begin.str()))
      found = true;
    if (!found || !line.starts_with("VmFlags:"))
      continue;
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
    EXPECT_NE(error.message().find("expected 16.0 TiB to be free"), std::string::npos)
        << error.message();
  }
}

// A control group of at most so many bytes, of version 1 or 2; none where this process may not make
// one.
class LimitedGroup {
 public:
  explicit LimitedGroup(size_t bytes) {
    const bool v1 = std::filesystem::exists("/sys/fs/cgroup/memory");
    folder_ = cat(v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", "/muster-test-", ::getpid());
    exists_ = ::mkdir(folder_.c_str(), 0755) == 0 &&
              put(v1 ? "memory.limit_in_bytes" : "memory.max", cat(bytes));
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;
  ~LimitedGroup() { ::rmdir(folder_.c_str()); }

  bool exists() const { return exists_; }
  bool enter() const { return put("cgroup.procs", "0"); }

 private:
  bool put(const char* file, const std::string& text) const {
    const Fd fd(::open(cat(folder_, "/", file).c_str(), O_WRONLY | O_CLOEXEC));
    return fd.valid() &&
           ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  std::string folder_;
  bool exists_ = false;
};

// Six ranks at once, each of which wants two thirds of what there is: the kernel would not refuse
// the second, it would kill somebody.
TEST(SharedMemory, RanksOfOneControlGroupDoNotTakeTheSameMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory would count";
#endif
  constexpr size_t kEach = size_t{64} << 20;
  constexpr int kRanks = 6;
  const LimitedGroup group(kEach * 3 / 2);
  if (!group.exists())
    GTEST_SKIP() << "no memory control group can be made here";
  {
    SharedMemory memory = SharedMemory::make(kEach * kRanks);
    int ready[2];
    int go[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(::fork());
      if (ranks.back() != 0)
        continue;
      ::close(go[1]);
      char none = 0;
      if (!group.enter() || ::write(ready[1], "x", 1) != 1 || ::read(go[0], &none, 1) != 0)
        ::_exit(9);
      try {
        memory.reserve(kEach * static_cast<size_t>(rank), kEach);
      } catch (const Error&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(ready[1]);
    for (int rank = 0; rank < kRanks; ++rank) {
      char byte = 0;
      EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    }
    ::close(go[1]);
    std::vector<int> ends;
    for (const pid_t rank : ranks) {
      int status = 0;
      ::waitpid(rank, &status, 0);
      ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    EXPECT_EQ(std::count(ends.begin(), ends.end(), 0), 1) << "one has room";
    EXPECT_EQ(std::count(ends.begin(), ends.end(), 1), kRanks - 1) << "the others have an error";
    ::close(ready[0]);
    ::close(go[0]);
  }
}

}  // namespace
}  // namespace muster::shm
