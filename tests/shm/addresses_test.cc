// Ranks whose processes have few addresses, as on a kernel with 39 bits of them or under a limit of
// a container's: all go on with arenas that the one with the fewest can map.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/shm/arena.h"
#include "muster/shm/collectives.h"
#include "tests/shm/ranks.h"

namespace muster::shm {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int kProcesses = 3;
constexpr size_t kCount = size_t{1} << 20;

// What the test's processes share: rank 0's word in the store, and what the ranks have found.
struct Notes {
  std::atomic<int> named;
  char name[600];
  std::array<std::atomic<uint64_t>, kProcesses> arena_bytes;
  char error[kProcesses][600];
};

Notes* shared_notes() {
  void* const memory =
      ::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Notes{};
}

Exchange exchange_over(Notes& notes) {
  return {.set =
              [&](const std::string&, const std::string& value) {
                std::snprintf(notes.name, sizeof(notes.name), "%s", value.c_str());
                notes.named = 1;
                notes.named.notify_all();
              },
          .get =
              [&](const std::string&) {
                while (notes.named == 0)
                  std::this_thread::yield();
                return std::string(notes.name);
              }};
}

void limit_addresses(size_t more) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + more;
  const rlimit both = {.rlim_cur = limit, .rlim_max = limit};
  ::setrlimit(RLIMIT_AS, &both);
}

// Whether a process is held to its limit: not under a sanitizer, which needs more addresses than
// any limit leaves, nor in an emulator, which takes no notice.
bool limits_hold() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#endif
  const pid_t pid = ::fork();
  if (pid == 0) {
    constexpr size_t kMore = size_t{64} << 20;
    limit_addresses(kMore);
    constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    ::_exit(::mmap(nullptr, 2 * kMore, PROT_NONE, kNothing, -1, 0) == MAP_FAILED ? 0 : 1);
  }
  int status = 1;
  ::waitpid(pid, &status, 0);
  return status == 0;
}

// Sums what lies in the ranks' arenas, which takes no copies.
void sum_in_arenas(Team& team) {
  Arena arena(team.memory(), team.layout().arena(team.rank()), team.layout().arena_bytes);
  const auto shared = arena.allocate(kCount * sizeof(float));
  auto* const values = reinterpret_cast<float*>(shared.get());
  std::fill_n(values, kCount, static_cast<float>(team.rank() + 1));
  Collectives collectives(team);
  const Request request{.kind = Kind::all_reduce,
                        .type = Type::f32,
                        .count = kCount,
                        .out = {{.data = shared.get(), .bytes = kCount * sizeof(float)}}};
  collectives.begin(request);
  collectives.finish(request, Deadline(std::chrono::seconds(20)));
  constexpr float kSum = kProcesses * (kProcesses + 1) / 2;
  if (std::count(values, values + kCount, kSum) != static_cast<ptrdiff_t>(kCount))
    throw Error(ErrorCode::internal, "the sum is wrong");
}

[[noreturn]] void be_rank_of(Notes& notes, int rank, size_t more_addresses) {
  if (more_addresses != 0)
    limit_addresses(more_addresses);
  try {
    Team team(exchange_over(notes), rank, kProcesses, std::chrono::seconds(20));
    notes.arena_bytes[static_cast<size_t>(rank)] = team.layout().arena_bytes;
    sum_in_arenas(team);
    ::_exit(0);
  } catch (const Error& error) {
    std::snprintf(notes.error[rank], sizeof(notes.error[rank]), "%s", error.what());
    ::_exit(1);
  }
}

// Runs the ranks, of which `limited` has so many addresses more than it has used already.
void run_processes(Notes& notes, int limited, size_t more_addresses) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kProcesses; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0)
      be_rank_of(notes, rank, rank == limited ? more_addresses : 0);
    pids.push_back(pid);
  }
  for (const pid_t pid : pids)
    ::waitpid(pid, nullptr, 0);
}

TEST(Addresses, AllRanksGoOnWithWhatTheOneWithTheFewestHas) {
  if (!limits_hold())
    GTEST_SKIP() << "no limit of addresses holds here";
  for (const int limited : {0, 1, kProcesses - 1}) {
    SCOPED_TRACE(cat("rank ", limited, " is limited"));
    Notes& notes = *shared_notes();
    run_processes(notes, limited, size_t{3} << 30);
    for (const char* error : notes.error)
      EXPECT_STREQ(error, "");
    const std::vector<uint64_t> bytes(notes.arena_bytes.begin(), notes.arena_bytes.end());
    EXPECT_THAT(bytes, Each(bytes[0]));
    EXPECT_GE(bytes[0], kLeastArena);
    EXPECT_LT(kProcesses * bytes[0], size_t{3} << 30);
    ::munmap(&notes, sizeof(Notes));
  }
}

TEST(Addresses, TooFewForTheLeastAreAnError) {
  if (!limits_hold())
    GTEST_SKIP() << "no limit of addresses holds here";
  Notes& notes = *shared_notes();
  run_processes(notes, 0, size_t{64} << 20);
  EXPECT_THAT(
      notes.error[0],
      HasSubstr("of addresses, the least that the group needs; raise the limit (ulimit -v)"));
  EXPECT_THAT(notes.error[1], HasSubstr("(rank 0)"));
  ::munmap(&notes, sizeof(Notes));
}

}  // namespace
}  // namespace muster::shm
