// What a process needs that has many teams.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>

#include "muster/base/strings.h"
#include "tests/shm/ranks.h"

namespace muster::shm {
namespace {

constexpr int kRanks = 64;
constexpr int kTeams = 16;
constexpr rlim_t kDescriptors = 1024;
constexpr std::chrono::minutes kLimit{3};

// What the ranks, processes, have in common: a word of rank 0's for each team, and how many have
// come.
struct TeamBoard {
  struct Word {
    std::atomic<uint32_t> is_there;
    char text[64];
  };
  Word words[kTeams];
  std::atomic<int> ready;
};

Exchange exchange_by(TeamBoard::Word& word) {
  return {.set =
              [&word](const std::string&, const std::string& value) {
                std::strncpy(word.text, value.c_str(), sizeof(word.text) - 1);
                word.is_there = 1;
              },
          .get =
              [&word](const std::string&) {
                while (word.is_there.load() == 0)
                  ::usleep(1000);
                return std::string(word.text);
              }};
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// Makes its teams, then waits with all for one that is killed meanwhile. What went wrong; empty:
// nothing.
std::string life_of(int rank, TeamBoard& board) {
  const rlimit limit{.rlim_cur = kDescriptors, .rlim_max = kDescriptors};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return "setrlimit";
  std::vector<std::unique_ptr<Team>> teams;
  for (TeamBoard::Word& word : board.words)
    teams.push_back(std::make_unique<Team>(exchange_by(word), rank, kRanks, kLimit));
  if (open_descriptors() > kRanks + 3 * kTeams + 20)
    return cat("has ", open_descriptors(), " descriptors open");
  ++board.ready;
  if (rank == kRanks - 1)
    for (;;)
      ::pause();
  for (const auto& team : teams) {
    team->arrive();
    try {
      team->wait_for_all({"barrier", 1}, Deadline(kLimit));
      return "did not see the last rank end";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_failed)
        return error.message();
    }
  }
  return "";
}

TEST(ManyTeams, SixtyFourRanksHaveSixteenTeamsWithAThousandDescriptors) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "the thread sanitizer leaves no room for the addresses of sixteen teams of 64 ranks";
#endif
  void* const memory =
      ::mmap(nullptr, sizeof(TeamBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& board = *new (memory) TeamBoard{};
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(::fork());
    if (ranks.back() != 0)
      continue;
    std::string wrong;
    try {
      wrong = life_of(rank, board);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    if (!wrong.empty())
      std::fprintf(stderr, "rank %d: %s\n", rank, wrong.c_str());
    ::_exit(wrong.empty() ? 0 : 1);
  }
  const Deadline deadline(kLimit);
  while (board.ready.load() < kRanks && !deadline.passed()) {
    ::usleep(1000);
    siginfo_t ended{};  // too early, and why is said then
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0)
      break;
  }
  EXPECT_EQ(board.ready.load(), kRanks);
  ::kill(ranks.back(), SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = -1;
    ::waitpid(ranks[static_cast<size_t>(rank)], &status, 0);
    if (rank == kRanks - 1)
      continue;
    EXPECT_EQ(status, 0) << "rank " << rank;
  }
  ::munmap(memory, sizeof(TeamBoard));
}

TEST(ManyTeams, LeaveAddressesForMore) {
  const size_t machine = size_t{2} << 40;
  size_t mapped = 0;
  EXPECT_GE(layout_for(8, machine, mapped).arena_bytes, size_t{128} << 30);
  for (int team = 0; team < 2000; ++team) {
    const Layout layout = layout_for(8, machine, mapped);
    ASSERT_GE(layout.arena_bytes, size_t{64} << 20);
    mapped += layout.total();
  }
  EXPECT_LT(mapped, size_t{1} << 46);
}

}  // namespace
}  // namespace muster::shm
