#include "muster/launch/lease.h"
#include "muster/base/runtime_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/launch/lease_note.h"
#include "tests/device/scratch.h"
#include "tests/launch/cleaned_place.h"
#include "tests/launch/lease_process.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const GpuUuid kA{"GPU-aaaa"};
const GpuUuid kB{"GPU-bbbb"};

class LeaseTest : public testing::Test {
 protected:
  LeaseFolder folder() const { return LeaseFolder({.folder = path()}); }
  std::string path() const { return scratch_.path() + "/muster"; }

  // Why a folder cannot be used.
  std::string refusal() const {
    try {
      folder();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
      return error.what();
    }
    return "";
  }

  ScratchFolder scratch_;
};

TEST_F(LeaseTest, OneHolderAtATime) {
  const LeaseFolder leases = folder();
  auto first = leases.try_take(kA);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->gpu(), kA);
  EXPECT_FALSE(leases.try_take(kA));
  EXPECT_TRUE(leases.try_take(kB));
  first.reset();
  EXPECT_TRUE(leases.try_take(kA));
}

TEST_F(LeaseTest, FolderAndFilesAreTheUsersAlone) {
  const auto lease = folder().try_take(kA);
  struct stat info = {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  ASSERT_EQ(::stat((path() + "/gpu-aaaa").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_NE(::fcntl(lease->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(LeaseTest, HoldersAreNamed) {
  const LeaseFolder leases = folder();
  EXPECT_THAT(leases.holders(kA), IsEmpty());
  const LeaseNote note{.job = "4f2a",
                       .program = "train\x1b[2J",
                       .since_seconds = 12,
                       .memory_bytes = uint64_t{1} << 30};
  auto lease = leases.try_take(kA, kWholeGpu, note);
  auto holders = leases.holders(kA);
  ASSERT_THAT(holders, SizeIs(1));
  EXPECT_EQ(holders[0].units, kWholeGpu);
  EXPECT_TRUE(holders[0].alive);
  ASSERT_TRUE(holders[0].note);
  EXPECT_EQ(holders[0].note->pid, ::getpid());
  EXPECT_EQ(holders[0].note->job, "4f2a");
  EXPECT_EQ(holders[0].note->memory_bytes, uint64_t{1} << 30);
  EXPECT_THAT(describe(holders[0]),
              HasSubstr(cat("job 4f2a (train?[2J, pid ", ::getpid(), ") since ")));
  EXPECT_THAT(describe(holders[0]), HasSubstr("1.0 GiB reserved"));
  lease.reset();
  EXPECT_THAT(leases.holders(kA), IsEmpty());
}

TEST_F(LeaseTest, SharesFillAGpu) {
  const LeaseFolder leases = folder();
  const auto half = leases.try_take(kA, 500);
  ASSERT_TRUE(half);
  EXPECT_FALSE(leases.try_take(kA));
  EXPECT_FALSE(leases.try_take(kA, 501));
  const auto other = leases.try_take(kA, 500, {.job = "other"});
  ASSERT_TRUE(other);
  EXPECT_FALSE(leases.try_take(kA, 1));
  const auto holders = leases.holders(kA);
  ASSERT_THAT(holders, SizeIs(2));
  EXPECT_EQ(holders[0].units, 500);
  EXPECT_EQ(holders[1].units, 500);
  EXPECT_EQ(holders[1].note->job, "other");
  EXPECT_THAT(describe(holders[1]), HasSubstr("500 of 1000 units: job other (pid "));
}

TEST_F(LeaseTest, AShareTakesSeveralGaps) {
  const LeaseFolder leases = folder();
  std::vector<std::optional<Lease>> quarters;
  for (const char* job : {"1", "2", "3", "4"})
    quarters.push_back(leases.try_take(kA, 250, {.job = job}));
  quarters[0].reset();
  quarters[2].reset();
  const auto half = leases.try_take(kA, 400, {.job = "half"});
  ASSERT_TRUE(half);
  std::map<std::string, int> units;
  for (const LeaseHolder& holder : leases.holders(kA))
    units[holder.note->job] += holder.units;
  EXPECT_EQ(units, (std::map<std::string, int>{{"half", 400}, {"2", 250}, {"4", 250}}));
  EXPECT_THAT(leases.holders(kA), SizeIs(3));
  EXPECT_FALSE(leases.try_take(kA, 101));
  EXPECT_TRUE(leases.try_take(kA, 100));
}

TEST_F(LeaseTest, AllOrNone) {
  const LeaseFolder leases = folder();
  auto held = leases.try_take(kB, kWholeGpu, {.job = "holder"});
  const LeaseResult refused = leases.try_take_all({{kB}, {kA}});
  EXPECT_THAT(refused.leases, IsEmpty());
  ASSERT_THAT(refused.busy, SizeIs(1));
  EXPECT_EQ(refused.busy[0].gpu, kB);
  ASSERT_THAT(refused.busy[0].holders, SizeIs(1));
  EXPECT_EQ(refused.busy[0].holders[0].note->job, "holder");
  EXPECT_THAT(leases.holders(kA), IsEmpty());
  held.reset();
  const LeaseResult taken = leases.try_take_all({{kB}, {kA}});
  ASSERT_THAT(taken.leases, SizeIs(2));
  EXPECT_EQ(taken.leases[0].gpu(), kA);
}

TEST_F(LeaseTest, AKilledHolderHoldsNothing) {
  LeaseProcess holder([&] {
    static const auto lease = folder().try_take(kA, kWholeGpu, {.job = "doomed"});
    return std::string(lease ? "taken" : "refused");
  });
  EXPECT_EQ(holder.line(), "taken");
  const LeaseFolder leases = folder();
  EXPECT_FALSE(leases.try_take(kA));
  EXPECT_EQ(leases.holders(kA).at(0).note->pid, holder.pid());
  holder.kill();
  EXPECT_THAT(leases.holders(kA), IsEmpty());
  EXPECT_TRUE(leases.try_take(kA));  // the file and its note are still there: neither matters
}

// A launcher that is killed while its rank lives on: the rank inherited the descriptor, so it holds
// the lease.
TEST_F(LeaseTest, SurvivingRanksHoldIt) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  LeaseProcess launcher([&] {
    static const auto lease = folder().try_take(kA, kWholeGpu, {.job = "orphaned"});
    if (::fork() == 0) {
      write_end.reset();
      char end = 0;
      [[maybe_unused]] const ssize_t n =
          ::read(read_end.get(), &end, 1);  // until the test lets it end
      ::_exit(0);
    }
    return std::string(lease ? "taken" : "refused");
  });
  EXPECT_EQ(launcher.line(), "taken");
  launcher.kill();
  const LeaseFolder leases = folder();
  EXPECT_FALSE(leases.try_take(kA));
  ASSERT_THAT(leases.holders(kA), SizeIs(1));
  EXPECT_FALSE(leases.holders(kA)[0].alive);
  EXPECT_THAT(describe(leases.holders(kA)[0]),
              HasSubstr("which has ended; a process that it started still holds the lease"));
  read_end.reset();
  write_end.reset();
  while (!leases.holders(kA).empty())
    ::sched_yield();  // the rank is no child of this process
  EXPECT_TRUE(leases.try_take(kA));
}

TEST_F(LeaseTest, InheritedByDescriptorAlone) {
  const LeaseFolder leases = folder();
  auto lease = leases.try_take(kA);
  LeaseProcess rank([&] { return std::string("here"); });  // has the descriptor, as a rank would
  EXPECT_EQ(rank.line(), "here");
  lease.reset();
  EXPECT_FALSE(leases.try_take(kA));
  rank.kill();
  EXPECT_TRUE(leases.try_take(kA));
}

TEST_F(LeaseTest, AJobInsideAJobUsesItsLease) {
  const auto outer = folder().try_take(kA);
  const auto foreign = folder().try_take(kB);
  const LeaseFolder inner(
      {.folder = path(), .inherited = cat("0,x,", outer->fd(), ",999999999999")});
  const auto again = inner.try_take(kA);
  ASSERT_TRUE(again);
  EXPECT_NE(again->fd(), outer->fd());
  EXPECT_FALSE(inner.try_take(kB));
  EXPECT_FALSE(LeaseFolder({.folder = path(), .inherited = "0"}).try_take(kA));
}

TEST_F(LeaseTest, TwoLaunchersGetDifferentGpus) {
  for (int round = 0; round < 20; ++round) {
    const auto take_one = [&] {
      static std::vector<Lease> kept;
      for (const char* gpu : {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}) {
        if (auto lease = folder().try_take({gpu})) {
          kept.push_back(std::move(*lease));
          return std::string(gpu);
        }
      }
      return std::string("none");
    };
    LeaseProcess a(take_one), b(take_one), c(take_one), d(take_one), e(take_one);
    std::vector<std::string> got = {a.line(), b.line(), c.line(), d.line(), e.line()};
    EXPECT_THAT(got, testing::UnorderedElementsAre("GPU-0", "GPU-1", "GPU-2", "GPU-3", "none"));
  }
}

TEST_F(LeaseTest, UuidsAreNoPaths) {
  const LeaseFolder leases = folder();
  for (const char* bad : {"",
                          "GPU-",
                          "gpu-aaaa",
                          "GPU-../../etc/passwd",
                          "GPU-a/b",
                          "/GPU-a",
                          "GPU-a b",
                          "GPU-a\n",
                          "GPU-a_b",
                          "MIG-a/1/0",
                          "taking"}) {
    EXPECT_THROW(leases.try_take({bad}), Error) << bad;
    EXPECT_THROW(leases.try_take_all({{GpuUuid{bad}}}), Error) << bad;
  }
  EXPECT_THROW(leases.try_take({"GPU-" + std::string(200, 'a')}), Error);
  EXPECT_THROW(leases.try_take({std::string("GPU-a\0b", 7)}), Error);
  EXPECT_TRUE(leases.try_take({"GPU-8f3c1111-0000-4000-8000-00000000abcd"}));
  EXPECT_TRUE(leases.try_take({"MIG-GPU-8f3c/1/0"}));
  EXPECT_TRUE(leases.try_take({"MIG-8f3c"}));
  EXPECT_TRUE(leases.try_take({"GPU-pci-0000:3b:00.0"}));  // an AMD GPU that tells no id
}

TEST_F(LeaseTest, BadUnitsAndDoublesAreRefused) {
  const LeaseFolder leases = folder();
  EXPECT_THROW(leases.try_take(kA, 0), Error);
  EXPECT_THROW(leases.try_take(kA, 1001), Error);
  EXPECT_THROW(leases.try_take_all({{kA}, {kA}}), Error);
  EXPECT_THROW(leases.try_take_all({{kA}, {GpuUuid{"GPU-AAAA"}}}), Error);  // one file
}

TEST_F(LeaseTest, StaleAndForeignContentIsNoObstacle) {
  fs::create_directory(path());
  fs::permissions(path(), fs::perms::owner_all);
  scratch_.write("muster/gpu-aaaa", std::string(100'000, '{'));
  scratch_.write("muster/unrelated", "x");
  const LeaseFolder leases = folder();
  EXPECT_THAT(leases.holders(kA), IsEmpty());
  const auto lease = leases.try_take(kA, 1000, {.job = "new"});
  ASSERT_TRUE(lease);
  EXPECT_EQ(leases.holders(kA).at(0).note->job, "new");
}

TEST_F(LeaseTest, AFolderThatIsALinkIsRefused) {
  fs::create_directory(scratch_.path() + "/elsewhere");
  fs::permissions(scratch_.path() + "/elsewhere", fs::perms::owner_all);
  fs::create_directory_symlink(scratch_.path() + "/elsewhere", path());
  EXPECT_THAT(refusal(), HasSubstr("which is a link or no folder"));
  EXPECT_TRUE(fs::is_empty(scratch_.path() + "/elsewhere"));
}

TEST_F(LeaseTest, AFileThatIsALinkIsRefused) {
  const LeaseFolder leases = folder();
  const std::string target = scratch_.write("precious", "text");
  fs::create_symlink(target, path() + "/gpu-aaaa");
  EXPECT_THROW(leases.try_take(kA), Error);
  EXPECT_EQ(read_file(target), "text");
  ASSERT_EQ(::mkfifo((path() + "/gpu-bbbb").c_str(), 0600), 0);
  EXPECT_THROW(leases.try_take(kB), Error);
}

TEST_F(LeaseTest, AFolderOpenToOthersIsRefused) {
  fs::create_directory(path());
  fs::permissions(path(), fs::perms::owner_all | fs::perms::group_read);
  EXPECT_THAT(refusal(), HasSubstr("which has mode 0740"));
  scratch_.write("file", "");
  EXPECT_THROW(LeaseFolder({.folder = scratch_.path() + "/file"}), Error);
}

TEST_F(LeaseTest, AnothersFolderIsRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(path());
  fs::permissions(path(), fs::perms::owner_all);
  ASSERT_EQ(::chown(path().c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal(), HasSubstr("which belongs to user 12345"));
}

TEST_F(LeaseTest, LookingMakesNothing) {
  const LeaseFolder leases({.folder = path(), .create = false});
  EXPECT_THAT(leases.holders(kA), IsEmpty());
  EXPECT_FALSE(fs::exists(path()));
  EXPECT_THROW(leases.try_take(kA), Error);
}

// The lock is the lease: where nothing can be written, it is held all the same. (A limit on file
// sizes stands in for a full disk; it is the child's alone.)
TEST_F(LeaseTest, AFullDiskTakesOnlyTheNote) {
  LeaseProcess holder([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit none = {0, 0};
    ::setrlimit(RLIMIT_FSIZE, &none);
    static const auto lease = folder().try_take(kA);
    return std::string(lease ? "taken" : "refused");
  });
  EXPECT_EQ(holder.line(), "taken");
  const auto holders = folder().holders(kA);
  ASSERT_THAT(holders, SizeIs(1));
  EXPECT_FALSE(holders[0].note);
  EXPECT_EQ(describe(holders[0]), "a job that left no note");
  EXPECT_FALSE(folder().try_take(kA));
}

TEST_F(LeaseTest, AStoppedTakerIsWaitedForOnlySoLong) {
  const auto lease = folder().try_take(kA);
  const Fd taking(::open((path() + "/taking").c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(taking.get(), F_OFD_SETLK, &lock), 0);
  const LeaseFolder leases({.folder = path(), .patience = std::chrono::milliseconds(5)});
  try {
    leases.try_take(kB);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr(path() + "/taking"));
  }
}

TEST(LeaseNote, AnyTextFits) {
  LeaseNote note{.pid = 7, .job = std::string(5000, '\x01'), .program = std::string(5000, '\xff')};
  note.memory_bytes = UINT64_MAX;
  note.since_seconds = INT64_MIN;
  const std::string bytes = lease_note_to_bytes(note);
  EXPECT_THAT(bytes, SizeIs(kLeaseNoteBytes));
  const auto back = lease_note_from_bytes(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->pid, 7);
  EXPECT_EQ(back->memory_bytes, UINT64_MAX);
}

TEST(LeaseNote, RoundTripAndNoise) {
  const LeaseNote note = complete_lease_note({.job = "j", .program = "p", .memory_bytes = 5});
  EXPECT_EQ(lease_note_from_bytes(lease_note_to_bytes(note)), note);
  EXPECT_TRUE(lease_note_alive(note));
  LeaseNote recycled = note;
  recycled.started_ticks += 1;
  EXPECT_FALSE(lease_note_alive(recycled));
  for (const char* noise : {"", "{", "[]", "7", R"({"schema":"other"})", "\xff\xfe"}) {
    EXPECT_FALSE(lease_note_from_bytes(noise)) << noise;
  }
  EXPECT_TRUE(
      lease_note_from_bytes(R"({"schema":"muster.lease/1","pid":"x","since_seconds":1.5})"));
}

TEST(RuntimeFolder, DoesNotDependOnTheLogin) {
  const ScratchFolder scratch;
  const ScopedEnv told("MUSTER_RUNTIME_DIR", nullptr);
  const std::string at_cron = [] {
    const ScopedEnv runtime("XDG_RUNTIME_DIR", nullptr);
    return default_runtime_folder();
  }();
  const ScopedEnv runtime("XDG_RUNTIME_DIR", scratch.path().c_str());
  EXPECT_EQ(default_runtime_folder(), at_cron);
  const ScopedEnv chosen("MUSTER_RUNTIME_DIR", scratch.path().c_str());
  EXPECT_EQ(default_runtime_folder(), cat(scratch.path(), "/muster-", ::geteuid()));
}

TEST(RuntimeFolder, IsNoPlaceThatAnotherHasTaken) {
  const ScratchFolder first;
  const ScratchFolder second;
  const std::vector<std::string> places = {"/nowhere/at/all", first.path(), second.path()};
  const std::string name = cat("/muster-", ::geteuid());
  EXPECT_EQ(choose_runtime_folder(places), first.path() + name);
  ASSERT_EQ(::symlink(second.path().c_str(), (first.path() + name).c_str()),
            0);  // a stranger's, say
  EXPECT_EQ(choose_runtime_folder(places), second.path() + name);
  open_runtime_folder(second.path() + name, true);
  ASSERT_EQ(::unlink((first.path() + name).c_str()), 0);
  EXPECT_EQ(choose_runtime_folder(places), second.path() + name)
      << "where this user's jobs are already";
  open_runtime_folder(first.path() + name, true);
  if (::geteuid() != 0)
    return;  // only root can give a folder away
  EXPECT_EQ(choose_runtime_folder(places), first.path() + name);
  ASSERT_EQ(::chown((first.path() + name).c_str(), 65534, 65534), 0);
  EXPECT_EQ(choose_runtime_folder(places), second.path() + name);
}

TEST_F(LeaseTest, WhatClearsOldFilesAwayLeavesALeaseAlone) {
  const CleanedPlace place;
  if (!place.has_cleaner())
    GTEST_SKIP() << "systemd-tmpfiles is not installed";
  const LeaseFolder folder({.folder = place.path() + "/muster"});
  const auto lease = folder.try_take(kA);
  ASSERT_TRUE(lease);
  place.clean();
  EXPECT_FALSE(LeaseFolder({.folder = folder.path()}).try_take(kA));
  EXPECT_THAT(folder.holders(kA), SizeIs(1));
}

// Of a job whose launcher was killed there is only the rank's descriptor.
TEST_F(LeaseTest, WhatClearsOldFilesAwayLeavesAnOrphansLeaseAlone) {
  const CleanedPlace place;
  if (!place.has_cleaner())
    GTEST_SKIP() << "systemd-tmpfiles is not installed";
  const std::string folder = place.path() + "/muster";
  auto lease = LeaseFolder({.folder = folder}).try_take(kA);
  const LeaseProcess rank([&] { return std::string("here"); });
  lease.reset();
  place.clean();
  EXPECT_FALSE(LeaseFolder({.folder = folder}).try_take(kA));
}

// What an earlier version of muster has left there has another mode.
TEST_F(LeaseTest, WhatClearsOldFilesAwayLeavesALeaseOnAnOldFileAlone) {
  const CleanedPlace place;
  if (!place.has_cleaner())
    GTEST_SKIP() << "systemd-tmpfiles is not installed";
  const std::string folder = place.path() + "/muster";
  LeaseFolder({.folder = folder}).try_take(kA);
  fs::permissions(folder + "/gpu-aaaa", fs::perms::owner_read | fs::perms::owner_write);
  auto lease = LeaseFolder({.folder = folder}).try_take(kA);
  const LeaseProcess rank([&] { return std::string("here"); });
  lease.reset();
  place.clean();
  EXPECT_FALSE(LeaseFolder({.folder = folder}).try_take(kA));
}

TEST(RuntimeFolder, IsWaitedForWhileAnotherHasIt) {
  const ScratchFolder scratch;
  const std::string path = scratch.path() + "/muster";
  open_runtime_folder(path, true);
  const Fd cleaner(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(cleaner.get(), LOCK_EX), 0);
  EXPECT_THROW(open_runtime_folder(path, true, std::chrono::milliseconds(5)), Error);
  EXPECT_TRUE(open_runtime_folder(path, false).valid()) << "who only looks need not wait";
}

TEST(RuntimeFolder, ThatWasRemovedMeanwhileIsMadeAgain) {
  const ScratchFolder scratch;
  const std::string path = scratch.path() + "/muster";
  open_runtime_folder(path, true);
  Fd cleaner(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(cleaner.get(), LOCK_EX), 0);
  LeaseProcess job([&] {
    static const auto lease = LeaseFolder({.folder = path}).try_take(kA);
    return std::string(lease ? "taken" : "refused");
  });
  fs::remove(path);
  cleaner.reset();
  EXPECT_EQ(job.line(), "taken");
  EXPECT_FALSE(LeaseFolder({.folder = path}).try_take(kA));
}

}  // namespace
}  // namespace muster
