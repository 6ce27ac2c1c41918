#include "muster/shm/meet.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>

#include "muster/base/hex.h"
#include "muster/base/random_bytes.h"
#include "muster/base/strings.h"
#include "tests/shm/ranks.h"
#include "tests/support/send_descriptor.h"

namespace muster::shm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(Meet, RanksShareMemoryThatNobodyElseCanName) {
  run_ranks(3, [](Team& team) {
    EXPECT_EQ(team.size(), 3);
    Call& mine = team.call(team.rank(), 0);
    mine.count = static_cast<uint64_t>(team.rank()) + 10;
    team.arrive();
    team.wait_for_all({"test"}, Deadline(std::chrono::seconds(10)));
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(team.call(rank, 0).count, static_cast<uint64_t>(rank) + 10);
    team.arrive();
    team.wait_for_all({"test"}, Deadline(std::chrono::seconds(10)));
  });
}

TEST(Meet, MissingRanksAreNamed) {
  ThreadExchange store;
  const std::string error =
      error_of([&] { meet(store.exchange(), 0, 4, std::chrono::milliseconds(50)); });
  EXPECT_THAT(error, HasSubstr("missing rank(s) 1, 2, 3"));
}

// What is said of rank 1, which does not come to a step before that, or before the step has failed.
std::string warning_of(const RankNames& names) {
  static std::string told;
  static std::atomic<bool> over;
  told.clear();
  over = false;
  set_warning(
      [](const std::string& text) {
        told = text;
        over = true;
      },
      nullptr);
  run_ranks(
      2,
      [](Team& team) {
        if (team.rank() == 1) {
          while (!over)
            std::this_thread::yield();
          team.arrive();
          return;
        }
        team.arrive();
        error_of([&] {
          team.wait_for_all({"all_reduce", 3}, Deadline(std::chrono::milliseconds(2'000)));
        });
        over = true;
      },
      std::chrono::seconds(20),
      names);
  return told;
}

TEST(Meet, LateRanksMayWaitForAnotherHostThemselves) {
  EXPECT_THAT(warning_of({}), AllOf(HasSubstr("rank(s) 1;"), Not(HasSubstr("host"))));
  EXPECT_THAT(warning_of({.ranks = {2, 3}, .size = 4, .of_one_host = true}),
              AllOf(HasSubstr("all_reduce #3 on rank 2 of 4"),
                    HasSubstr("rank(s) 3;"),
                    HasSubstr("or whether they wait for another host themselves")));
}

// Python has no MUSTER_COLLECTIVE_TIMEOUT.
TEST(Meet, TheSettingOfTheLimitIsNamedWhereThereIsOne) {
  EXPECT_THAT(warning_of({}), Not(HasSubstr("MUSTER_")));
  static std::string told;
  set_warning([](const std::string& text) { told = text; }, "THE_SETTING");
  LateRanks(std::chrono::seconds(1)).tell("barrier", {0}, {1});
  EXPECT_THAT(told, HasSubstr("(THE_SETTING)"));
}

TEST(Meet, StrangersAreSentAway) {
  ThreadExchange store;
  std::thread second([&] {
    const std::string name = store.exchange().get("shm");
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    ASSERT_GT(::send(socket.get(), "who are you", 11, 0), 0);
    char answer[64];
    EXPECT_EQ(::recv(socket.get(), answer, sizeof(answer), 0), 0) << "closed, and nothing was sent";
    const Met met = meet(store.exchange(), 1, 2, std::chrono::seconds(10));
    EXPECT_EQ(met.layout.size, 2);
  });
  const Met met = meet(store.exchange(), 0, 2, std::chrono::seconds(10));
  second.join();
  EXPECT_TRUE(met.peers[1].valid());
}

// A connection to rank 0's socket.
Fd called(const std::string& name) {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    socket.reset();
  return socket;
}

// Silent ones are not waited for one after the other.
TEST(Meet, CallersThatSayNothingHoldUpNobody) {
  ThreadExchange store;
  const auto start = Clock::now();
  std::thread second([&] {
    const std::string name = store.exchange().get("shm");
    std::vector<Fd> silent;
    for (int i = 0; i < 100; ++i)
      silent.push_back(called(name));
    const Met met = meet(store.exchange(), 1, 2, std::chrono::seconds(60));
    EXPECT_EQ(met.layout.size, 2);
  });
  const Met met = meet(store.exchange(), 0, 2, std::chrono::seconds(60));
  second.join();
  EXPECT_TRUE(met.peers[1].valid());
  EXPECT_LT(seconds_since(start), 30) << "five seconds for each would be minutes";
}

TEST(Meet, AFloodOfCallersDoesNotPutOffTheDeadline) {
  ThreadExchange store;
  std::atomic<bool> over{false};
  const auto start = Clock::now();
  std::thread flood([&] {
    const std::string name = store.exchange().get("shm");
    std::vector<Fd> silent;
    while (!over && seconds_since(start) < 30) {
      Fd caller = called(name);
      if (silent.size() < 64)
        silent.push_back(std::move(caller));
    }
  });
  const std::string error =
      error_of([&] { meet(store.exchange(), 0, 2, std::chrono::milliseconds(200)); });
  const double took = seconds_since(start);
  over = true;
  flood.join();
  EXPECT_THAT(error, HasSubstr("missing rank(s) 1"));
  EXPECT_LT(took, 20) << "the flood lasts for thirty";
}

// In a process of its own, which takes every descriptor there is as soon as it listens.
TEST(Meet, NoDescriptorLeftIsAnError) {
  int names[2];
  ASSERT_EQ(::pipe2(names, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{.rlim_cur = 64, .rlim_max = 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    ::alarm(60);  // it spins, if the error is not there
    const Exchange exchange{.set =
                                [&](const std::string&, const std::string& name) {
                                  while (::dup(0) >= 0) {
                                  }
                                  (void)!::write(names[1], name.data(), name.size());
                                },
                            .get = [](const std::string&) { return std::string(); }};
    const std::string error = error_of([&] { meet(exchange, 0, 2, std::chrono::seconds(5)); });
    ::_exit(error.find("expected a descriptor for the connection") != std::string::npos ? 0 : 1);
  }
  char name[64] = {};
  ASSERT_GT(::read(names[0], name, sizeof(name)), 0);
  const Fd call = called(name);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(names[0]);
  ::close(names[1]);
}

TEST(Meet, WhatIsNoNameOfASocketIsRefused) {
  const std::string digits(32, 'a');
  for (const std::string& name : {std::string(),
                                  std::string(5000, 'a'),
                                  "muster-" + digits + std::string(100, 'a'),
                                  "muster-" + std::string(32, 'g'),
                                  "master-" + digits,
                                  std::string(39, '\0')}) {
    ThreadExchange store;
    store.exchange().set("shm", name);
    EXPECT_THAT(error_of([&] { meet(store.exchange(), 1, 2, std::chrono::seconds(10)); }),
                HasSubstr("expected the name of rank 0's socket in the store"))
        << name;
  }
}

// What another program says in rank 0's place: with memory of so many bytes, a message that is cut
// off after so many.
struct Answer {
  off_t memory_bytes = 4096;
  uint64_t stage_bytes = 0;
  uint64_t arena_bytes = 0;
  size_t told = 4 * sizeof(uint64_t);
};

// Answers one caller as rank 0 does.
void answer_one(int listener, const Answer& answer) {
  const Fd caller(::accept(listener, nullptr, nullptr));
  int32_t rank = 0;
  (void)!::recv(caller.get(), &rank, sizeof(rank), 0);
  const Fd memory(::memfd_create("page", MFD_CLOEXEC));
  (void)!::ftruncate(memory.get(), answer.memory_bytes);
  uint64_t welcome[] = {kMagic, 2, answer.stage_bytes, answer.arena_bytes};
  send_descriptor(caller.get(), welcome, answer.told, memory.get());
}

// What rank 1 says of such a rank 0.
std::string error_after(const Answer& answer) {
  const std::string name = "muster-" + to_hex(random_bytes(16));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  std::thread rank0(answer_one, listener.get(), answer);
  ThreadExchange store;
  store.exchange().set("shm", name);
  std::string error = error_of([&] { meet(store.exchange(), 1, 2, std::chrono::seconds(10)); });
  rank0.join();
  return error;
}

TEST(Meet, MemoryThatIsShorterThanRankZeroSaysIsRefused) {
  for (const auto& [stage, arena] :
       std::initializer_list<std::pair<uint64_t, uint64_t>>{{4096, page_bytes()},
                                                            {uint64_t{1} << 61, 0},
                                                            {0, uint64_t{1} << 63},
                                                            {0, ~uint64_t{0}}}) {
    EXPECT_THAT(error_after({.stage_bytes = stage, .arena_bytes = arena}),
                HasSubstr("expected as much memory as rank 0 says"));
  }
}

// Atomics would lie across cache lines, a collective would have no room, or an arena would reach
// beyond the memory where this rank has few addresses.
TEST(Meet, PartsThatNoMusterMakesAreRefused) {
  const Layout right = layout_for(2);
  const off_t enough = off_t{1} << 30;
  for (const auto& [stage, arena] :
       std::initializer_list<std::pair<uint64_t, uint64_t>>{{right.stage_bytes + 8, kLeastArena},
                                                            {0, kLeastArena},
                                                            {right.stage_bytes, kLeastArena + 8},
                                                            {right.stage_bytes, page_bytes()}}) {
    EXPECT_THAT(error_after({.memory_bytes = enough, .stage_bytes = stage, .arena_bytes = arena}),
                HasSubstr("another program answers in its place"));
  }
}

TEST(Meet, MemoryThatCameWithHalfAMessageIsClosed) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_descriptors();
  EXPECT_THAT(error_after({.told = 8}), HasSubstr("expected rank 0 to answer"));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Meet, WhereRankZeroIsNotThatIsSaid) {
  ThreadExchange store;
  store.exchange().set("shm", "muster-" + std::string(32, 'a'));
  EXPECT_THAT(error_of([&] { meet(store.exchange(), 1, 2, std::chrono::seconds(1)); }),
              HasSubstr("expected rank 0 to answer"));
  store.exchange().set("shm", "error there was no memory");
  EXPECT_THAT(error_of([&] { meet(store.exchange(), 1, 2, std::chrono::seconds(1)); }),
              HasSubstr("there was no memory (rank 0)"));
}

TEST(Team, WhoDoesNotComeIsNamed) {
  run_ranks(3, [](Team& team) {
    if (team.rank() == 1) {
      const std::string why =
          error_of([&] { team.wait_for_all({"x"}, Deadline(std::chrono::seconds(10))); });
      EXPECT_EQ(why, "no error") << "this rank is at its last step";
      return;
    }
    team.arrive();
    const std::string error =
        error_of([&] { team.wait_for_all({"all_reduce #7"}, Deadline(std::chrono::seconds(10))); });
    EXPECT_THAT(error,
                testing::AnyOf(HasSubstr("rank 1 left the group"), HasSubstr("failed before")));
    EXPECT_THAT(error, HasSubstr("all_reduce #7 on rank"));
  });
}

// Rank 2 dies after its step; rank 1 sees that and is gone before rank 0 looks.
TEST(Team, WhoDiedIsNamedAlsoByWhoSeesAnotherLeaveForIt) {
  run_ranks(3, [](Team& team) {
    if (team.rank() == 2) {
      team.arrive();
      team.line(2).state = RankState::dead;
      return;
    }
    while (team.line(2).state.load() != RankState::dead)
      std::this_thread::yield();
    if (team.rank() == 1)
      return;
    team.arrive();
    const std::string error =
        error_of([&] { team.wait_for_all({"barrier #1"}, Deadline(std::chrono::seconds(10))); });
    EXPECT_THAT(error, HasSubstr(cat("rank 2 (process ", ::getpid(), ") ended")));
  });
}

TEST(Team, ADeadlineNamesWhoIsLate) {
  std::atomic<bool> over{false};
  run_ranks(2, [&](Team& team) {
    if (team.rank() == 1) {
      while (!over)
        std::this_thread::yield();
      return;
    }
    team.arrive();
    const std::string error = error_of(
        [&] { team.wait_for_all({"barrier #1"}, Deadline(std::chrono::milliseconds(30))); });
    over = true;
    EXPECT_THAT(error, HasSubstr("missing rank(s) 1"));
  });
}

// A rank's process is killed while the other sleeps for it.
TEST(Team, ARankThatIsKilledIsNamedAtOnce) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char name[64] = {};
    if (::read(pipes[0], name, sizeof(name)) <= 0)
      ::_exit(1);
    const Exchange exchange{.set = [](const std::string&, const std::string&) {},
                            .get = [&](const std::string&) { return std::string(name); }};
    Team team(exchange, 1, 2, std::chrono::seconds(10));
    ::pause();
  }
  const Exchange exchange{.set =
                              [&](const std::string&, const std::string& value) {
                                (void)!::write(pipes[1], value.data(), value.size());
                              },
                          .get = [](const std::string&) { return std::string(); }};
  Team team(exchange, 0, 2, std::chrono::seconds(10));
  team.arrive();
  Clock::time_point killed;
  std::thread killer([&] {
    while (team.line(0).waits_for.load() == 0)
      std::this_thread::yield();  // it sleeps
    killed = Clock::now();
    ::kill(child, SIGKILL);
  });
  const std::string error =
      error_of([&] { team.wait_for_all({"all_reduce #3"}, Deadline(std::chrono::seconds(60))); });
  const double took = seconds_since(killed);
  killer.join();
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(error, HasSubstr(cat("rank 1 (process ", child, ") ended")));
  EXPECT_LT(took, 20)
      << "not at the deadline; on a machine with nothing else to do it is milliseconds";
  ::close(pipes[0]);
  ::close(pipes[1]);
}

}  // namespace
}  // namespace muster::shm
