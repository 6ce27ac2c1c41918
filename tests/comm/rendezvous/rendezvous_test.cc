// Ranks that do not fit together are found before a backend is built, and every message names both
// sides.
#include "muster/comm/rendezvous/rendezvous.h"
#include "muster/comm/init_after_rendezvous.h"
#include "muster/comm/rendezvous/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/launch/port.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Body>
std::string error_of(ErrorCode code, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

RankIdentity member(int rank,
                    int world_size,
                    const std::string& device = "cpu",
                    const std::string& host = "h") {
  return {.rank = rank,
          .world_size = world_size,
          .host = host,
          .pid = 100 + rank,
          .device = device,
          .backend = "auto",
          .libtorch = "2.15.0",
          .nccl = ""};
}

constexpr std::chrono::milliseconds kShort{200};    // for what is not to succeed
constexpr std::chrono::milliseconds kLong{60'000};  // for what is

TEST(JoinGroup, NamesTheRanksThatNeverCame) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(join(*store, member(2, 4), kShort), Error);  // times out, but has come
  const auto message = error_of(ErrorCode::timeout, [&] { join(*store, member(0, 4), kShort); });
  EXPECT_THAT(message, HasSubstr("missing rank(s) 1, 3"));
}

TEST(JoinGroup, RefusesASecondProcessWithARankAndNamesBoth) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(join(*store, member(1, 2), kShort), Error);  // times out, but has taken rank 1
  auto second = member(1, 2);
  second.pid = 999;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { join(*store, second, kShort); }),
              AllOf(HasSubstr("pid 999"), HasSubstr("pid 101"), HasSubstr("rank 1")));
}

TEST(JoinGroup, ShowsBothWorldSizes) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(join(*store, member(0, 2), kShort), Error);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { join(*store, member(1, 3), kShort); }),
              AllOf(HasSubstr("3 on rank 1"), HasSubstr("and 2 on")));
}

TEST(JoinGroup, RefusesAnotherLibTorchMinor) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto old = member(1, 2);
  old.libtorch = "2.11.0";
  std::thread other([&] { EXPECT_THROW(join(*store, old, kLong), Error); });
  const auto message =
      error_of(ErrorCode::invalid_argument, [&] { join(*store, member(0, 2), kLong); });
  other.join();
  EXPECT_THAT(message, AllOf(HasSubstr("2.15.0"), HasSubstr("2.11.0")));
}

TEST(ChooseBackend, NcclWhenEveryRankHasAGpuOfItsOwn) {
  EXPECT_EQ(choose_backend({member(0, 2, "GPU-a"), member(1, 2, "GPU-b")}, "auto"), "nccl");
  EXPECT_EQ(choose_backend({member(0, 2, "GPU-a", "h1"), member(1, 2, "GPU-a", "h2")}, "auto"),
            "nccl");  // other hosts
  EXPECT_EQ(choose_backend({member(0, 2), member(1, 2)}, "auto"), "shm");
  EXPECT_EQ(choose_backend({member(0, 2, "GPU-a"), member(1, 2)}, "auto"), "shm");  // one CPU rank
  EXPECT_EQ(choose_backend({member(0, 2, "GPU-a"), member(1, 2, "GPU-a")}, "auto"),
            "shm");  // one GPU for two
  EXPECT_EQ(choose_backend({member(0, 2, "cpu", "h1"), member(1, 2, "cpu", "h2")}, "auto"), "gloo");
  EXPECT_EQ(choose_backend({member(0, 2), member(1, 2)}, "gloo"), "gloo");
}

TEST(ChooseBackend, MigInstancesOfOneGpuAreOneGpuToNccl) {
  auto one = member(0, 2, "MIG-a"), other = member(1, 2, "MIG-b");
  one.pci_address = other.pci_address = "0:59:0";
  EXPECT_EQ(choose_backend({one, other}, "auto"), "shm");
  one.backend = other.backend = "nccl";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { choose_backend({one, other}, "nccl"); }),
              HasSubstr("share one GPU"));
  one.pci_address = "0:60:0";
  EXPECT_EQ(choose_backend({one, other}, "auto"), "nccl");
}

TEST(ChooseBackend, TwoNcclRanksOnOneGpuAreAnErrorNamingBoth) {
  auto a = member(0, 3, "GPU-a"), b = member(1, 3, "GPU-b"), c = member(2, 3, "GPU-a");
  a.backend = b.backend = c.backend = "nccl";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { choose_backend({a, b, c}, "nccl"); }),
              AllOf(HasSubstr("rank 0 (pid 100, GPU-a)"),
                    HasSubstr("rank 2 (pid 102, GPU-a)"),
                    HasSubstr("share one GPU")));
}

TEST(ChooseBackend, NcclWithACpuRankOrMixedWishesIsAnError) {
  auto a = member(0, 2, "GPU-a"), b = member(1, 2);
  a.backend = "nccl";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { choose_backend({a, b}, "nccl"); }),
              HasSubstr("rank 1"));
  auto c = member(1, 2, "GPU-b");
  c.backend = "gloo";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { choose_backend({a, c}, "nccl"); }),
              AllOf(HasSubstr("'nccl'"), HasSubstr("'gloo'")));
}

// Environment variables of one test, restored at its end.
class Environment : public ::testing::Test {
 protected:
  void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

 private:
  static void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "MUSTER_BACKEND",
                             "MUSTER_STORE"}) {
      ::unsetenv(name);
    }
  }
};

// A listening socket on a port that the system chose.
struct Listener {
  Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;
  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(fd.get(), 1), 0);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin_port);
  }
};

TEST_F(Environment, WithoutRankOrLauncherSaysHowToStart) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { init_process_group(); }),
              HasSubstr("muster run"));
}

TEST_F(Environment, ArgumentsAgainstTheEnvironmentShowBoth) {
  set("RANK", "0");
  set("WORLD_SIZE", "2");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [] { init_process_group({.rank = 1, .world_size = 2}); }),
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("rank 0 of 2")));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { init_process_group({.rank = 1}); }),
              HasSubstr("together"));
}

TEST_F(Environment, RankBeyondTheWorldIsRefused) {
  set("RANK", "4");
  set("WORLD_SIZE", "4");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { init_process_group(); }),
              AllOf(HasSubstr("RANK=4"), HasSubstr("WORLD_SIZE=4")));
}

TEST_F(Environment, MasterThatDoesNotResolveIsNamedWithinSeconds) {
  set("RANK", "1");
  set("WORLD_SIZE", "2");
  set("MASTER_ADDR", "no-such-host.invalid");
  set("MASTER_PORT", "29501");
  const auto start = Clock::now();
  EXPECT_THAT(error_of(ErrorCode::unavailable, [] { init_process_group(); }),
              HasSubstr("no-such-host.invalid"));
  EXPECT_LT(seconds_since(start), 60) << "not the five minutes for ranks to come";
}

TEST_F(Environment, PortTakenIsNamed) {
  const Listener taken;
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", cat(taken.port));
  EXPECT_THAT(error_of(ErrorCode::unavailable, [] { init_process_group(); }),
              HasSubstr(cat("port ", taken.port)));
}

TEST_F(Environment, MasterThatIsNotToldIsAnError) {
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { init_process_group(); }),
              HasSubstr("MASTER_ADDR"));
}

TEST_F(Environment, UnknownMethodAndBackendAreNamed) {
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument,
               [] { init_process_group({.init_method = "udp://x", .rank = 0, .world_size = 1}); }),
      HasSubstr("udp://x"));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { init_process_group(store, 0, 1, {.backend = "ncl"}); }),
              HasSubstr("'ncl'"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { init_process_group(store, 0, 1, {.backend = "nccl"}); }),
              HasSubstr("CUDA device"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { init_process_group(store, 2, 2); }),
              HasSubstr("rank 2 of 2"));
}

TEST_F(Environment, ACudaDeviceWhereThereIsNoneIsAnError) {
  if (torch::cuda::is_available())
    GTEST_SKIP() << "this machine has a GPU";
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto message = error_of(ErrorCode::unavailable, [&] {
    init_process_group(store, 0, 1, {.device = c10::Device(c10::kCUDA, 0)});
  });
  EXPECT_THAT(message, HasSubstr("cuda"));
}

class InitMethod : public ::testing::TestWithParam<const char*> {};

TEST_P(InitMethod, BringsThreeRanksTogether) {
  std::string folder = (::testing::TempDir() + "muster-init-XXXXXX");
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const PortReservation port(0);  // nobody else gets it, and rank 0 may listen there
  const std::string method = std::string(GetParam()) == "tcp" ? cat("tcp://127.0.0.1:", port.port())
                                                              : cat("file://", folder, "/store");
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto group = init_process_group({.init_method = method,
                                         .rank = rank,
                                         .world_size = 3,
                                         .init_timeout = std::chrono::seconds(30)});
        auto tensor = torch::tensor({static_cast<float>(rank)});
        group.all_reduce(tensor);
        EXPECT_EQ(tensor.item<float>(), 3);
        group.shutdown();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
}

INSTANTIATE_TEST_SUITE_P(Methods,
                         InitMethod,
                         ::testing::Values("tcp", "file"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster::testing
