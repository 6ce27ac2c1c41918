// The file store across processes: leftovers, strangers, and writers that die.
#include "muster/store/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "muster/base/strings.h"
#include "muster/store/file_lock.h"
#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;
using testing::HasSubstr;

class FileStoreTest : public testing::Test {
 protected:
  FileStoreOptions options(int rank, int world_size = 2, const std::string& job = "job") const {
    return {.path = path_, .job = job, .rank = rank, .world_size = world_size};
  }
  // A process that joins as `rank`, sets "stale", says so, and lives until it is killed.
  ChildProcess member(int rank, int world_size = 2, const std::string& job = "job") const {
    return ChildProcess([=, this](const auto& say) {
      FileStore store(options(rank, world_size, job));
      store.set("stale", "by an earlier run");
      say("joined");
      wait_to_be_killed();
    });
  }
  std::string refusal(const FileStoreOptions& options) const {
    return error_of(ErrorCode::failed_precondition, [&] { FileStore{options}; });
  }
  void append_to_file(const std::string& bytes) const {
    const Fd fd(::open(path_.c_str(), O_WRONLY | O_APPEND));
    write_all(fd.get(), bytes);
  }

  TempDir dir_;
  std::string path_ = dir_.file("store");
};

TEST_F(FileStoreTest, ServesProcesses) {
  constexpr int kRanks = 4;
  constexpr int kAdds = 200;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<ChildProcess>([&](const auto& say) {
      FileStore store(options(rank, kRanks));
      for (int i = 0; i < kAdds; ++i)
        store.add("n", 1);
      store.set(cat("rank/", rank), cat("from ", rank));
      const std::string neighbour = store.get(cat("rank/", (rank + 1) % kRanks), kLong);
      // Nobody leaves before all have read: the last one out takes the keys along.
      if (store.add("done", 1) == kRanks)
        store.set("all done", "");
      store.wait({"all done"}, kLong);
      say(cat(neighbour, " ", store.add("n", 0), " ", store.num_joined()));
    }));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->hear(),
              cat("from ", (rank + 1) % kRanks, " ", kRanks * kAdds, " ", kRanks));
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->join(), 0);
  }
  EXPECT_EQ(std::filesystem::file_size(path_), 0U);  // an orderly end leaves nothing
}

TEST_F(FileStoreTest, TheLeftoverOfAKilledRunIsStartedAnewWithAWarning) {
  auto rank0 = member(0);
  auto rank1 = member(1);
  EXPECT_EQ(rank0.hear(), "joined");
  EXPECT_EQ(rank1.hear(), "joined");
  rank0.kill();
  rank1.kill();
  EXPECT_GT(std::filesystem::file_size(path_), 0U);
  testing::internal::CaptureStderr();
  FileStore store(options(0, 3, "the next job"));
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning,
              testing::AllOf(HasSubstr(path_), HasSubstr("'job'"), HasSubstr("left over")));
  EXPECT_FALSE(store.check({"stale"}));
  EXPECT_EQ(store.num_joined(), 1);
  FileStore second(options(1, 3, "the next job"));
  store.set("fresh", "1");
  EXPECT_EQ(second.get("fresh", kLong), "1");
}

TEST_F(FileStoreTest, StaleKeysAreNotReadWhileOneOfTheFailedRunStillLives) {
  auto rank0 = member(0);
  auto rank1 = member(1);
  rank0.hear();
  rank1.hear();
  const pid_t dead = rank1.pid();
  rank1.kill();
  EXPECT_THAT(refusal(options(1)),
              testing::AllOf(HasSubstr(cat("pid ", dead)),
                             HasSubstr(cat("pid ", rank0.pid())),
                             HasSubstr(cat("pid ", ::getpid()))));
}

TEST_F(FileStoreTest, ASecondMemberOfARankIsRefusedAndBothAreNamed) {
  auto rank0 = member(0);
  rank0.hear();
  EXPECT_THAT(refusal(options(0)),
              testing::AllOf(HasSubstr("rank 0"),
                             HasSubstr(cat("pid ", rank0.pid())),
                             HasSubstr(cat("pid ", ::getpid()))));
  FileStore rank1(options(1));
  EXPECT_TRUE(rank1.check({"stale"}));  // the first member goes on
  EXPECT_EQ(rank1.num_joined(), 2);
}

TEST_F(FileStoreTest, TwoJobsOfOneFileAreToldApart) {
  auto rank0 = member(0, 2, "job A");
  rank0.hear();
  EXPECT_THAT(refusal(options(1, 2, "job B")),
              testing::AllOf(
                  HasSubstr("'job A'"), HasSubstr("'job B'"), HasSubstr(cat("pid ", rank0.pid()))));
  EXPECT_THAT(refusal(options(1, 4, "job A")),
              testing::AllOf(HasSubstr("2 ("), HasSubstr("and 4")));
}

TEST_F(FileStoreTest, ATornRecordIsIgnoredAndOverwritten) {
  FileStore rank0(options(0)), rank1(options(1));
  rank0.set("before", "1");
  const std::string torn = encode_record({FileRecord::Kind::set, "before", std::string(1000, 'x')});
  append_to_file(torn.substr(0, torn.size() / 2));
  EXPECT_EQ(rank1.get("before", kLong), "1");
  rank1.set("after", "2");
  EXPECT_EQ(rank0.get("after", kLong), "2");
  EXPECT_EQ(rank0.get("before", kLong), "1");
  EXPECT_EQ(rank0.num_keys(), 2);
}

TEST_F(FileStoreTest, AWriterKilledAtAnyMomentLeavesAUsableStore) {
  FileStore rank0(options(0));
  {
    ChildProcess writer([&](const auto& say) {
      FileStore store(options(1));
      say("joined");
      for (int64_t i = 0;; ++i)
        store.set("k", std::string(static_cast<size_t>(i % 5000), 'x'));
    });
    writer.hear();
    rank0.get("k", kLong);
    writer.kill();
  }
  EXPECT_EQ(rank0.add("n", 1), 1);
  const std::string value = rank0.get("k", kLong);
  EXPECT_EQ(value, std::string(value.size(), 'x'));
}

TEST_F(FileStoreTest, AFileOfSomethingElseIsRefusedAndNotTouched) {
  write_file(path_, "someone's thesis");
  EXPECT_THAT(refusal(options(0)), HasSubstr(path_));
  EXPECT_EQ(read_file(path_), "someone's thesis");
}

TEST_F(FileStoreTest, AFileCutInItsHeaderIsStartedAnew) {
  for (const size_t size : {size_t{0}, size_t{5}, kFileMagic.size(), kFileMagic.size() + 7}) {
    write_file(path_, (std::string(kFileMagic) + "garbage garbage").substr(0, size));
    FileStore store(options(0));
    EXPECT_EQ(store.num_keys(), 0);
  }
}

TEST_F(FileStoreTest, AFileOfAnotherBootProvesNothingAndIsRefused) {
  const FileHeader header{.world_size = 2, .generation = 1, .boot_id = "another-boot"};
  write_file(path_,
             std::string(kFileMagic) +
                 encode_record({FileRecord::Kind::header, "old job", encode_header(header)}));
  EXPECT_THAT(refusal(options(0)), testing::AllOf(HasSubstr("'old job'"), HasSubstr("remove it")));
}

TEST_F(FileStoreTest, AFileRemovedOrCutWhileInUseIsAnError) {
  FileStore rank0(options(0)), rank1(options(1));
  rank0.set("k", "v");
  ASSERT_EQ(::truncate(path_.c_str(), 3), 0);
  EXPECT_THAT(error_of(ErrorCode::failed_precondition, [&] { rank0.set("k", "w"); }),
              HasSubstr("cut"));
  ::unlink(path_.c_str());
  EXPECT_THAT(error_of(ErrorCode::failed_precondition, [&] { rank1.get("k", kLong); }),
              HasSubstr("removed"));
}

TEST_F(FileStoreTest, AStoppedHolderOfTheLockIsATimeoutNotAHang) {
  FileStoreOptions impatient = options(0);
  impatient.lock_timeout = std::chrono::milliseconds(20);
  FileStore rank0(impatient);
  const Fd holder(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  lock_operation(holder.get(), path_, Deadline(kLong));
  EXPECT_THAT(error_of(ErrorCode::timeout, [&] { rank0.set("k", "v"); }), HasSubstr(path_));
  unlock_operation(holder.get());
  rank0.set("k", "v");
  EXPECT_EQ(rank0.get("k", kLong), "v");
}

TEST_F(FileStoreTest, ARankOutOfRangeOrAPathThatIsNoFileIsRefused) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { FileStore{options(2)}; }),
              HasSubstr("rank 2 of 2"));
  error_of(ErrorCode::invalid_argument, [&] { FileStore{options(-1)}; });
  error_of(ErrorCode::invalid_argument, [&] { FileStore{options(0, 0)}; });
  FileStoreOptions bad = options(0);
  bad.path = dir_.file("no/such/folder");
  EXPECT_THAT(error_of(ErrorCode::io, [&] { FileStore{bad}; }), HasSubstr(bad.path));
  bad.path = dir_.file("fifo");
  ASSERT_EQ(::mkfifo(bad.path.c_str(), 0600), 0);
  EXPECT_THAT(refusal(bad), HasSubstr("regular file"));
}

TEST_F(FileStoreTest, AForkedChildsCopyDoesNotLeaveForItsParent) {
  auto rank0 = std::make_unique<FileStore>(options(0));
  rank0->set("k", "v");
  ChildProcess child([&](const auto&) { rank0.reset(); });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(rank0->get("k", kLong), "v");
  refusal(options(0));
}

}  // namespace
}  // namespace muster
