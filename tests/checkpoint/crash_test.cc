// Saves that are killed or run out of disk: the checkpoint before is always whole.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"
#include "tests/support/small_disk.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// checkpoint_writer as a child, killed at the latest with the object.
class Writer {
 public:
  explicit Writer(std::vector<std::string> arguments) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw std::runtime_error("pipe2 failed");
    out_.reset(ends[0]);
    const Fd write_end(ends[1]);
    arguments.insert(arguments.begin(), CHECKPOINT_WRITER);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (auto& argument : arguments)
      argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    const int error =
        ::posix_spawn(&pid_, CHECKPOINT_WRITER, &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
      throw std::runtime_error("posix_spawn failed");
  }
  ~Writer() { kill(); }

  // The number in the next "saved N", or -1 at the end.
  int64_t next_saved() {
    for (;;) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        const auto step = std::stoll(text_.substr(6, end - 6));
        text_.erase(0, end + 1);
        return step;
      }
      char buffer[256];
      const ssize_t n = ::read(out_.get(), buffer, sizeof(buffer));
      if (n <= 0)
        return -1;
      text_.append(buffer, static_cast<size_t>(n));
    }
  }

  void kill() {
    if (pid_ <= 0)
      return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  Fd out_;
  std::string text_;
};

int64_t loaded_step(const std::string& folder) {
  auto model = test::big_model();
  ::testing::internal::CaptureStderr();
  const auto loaded = load_latest_checkpoint(folder, {*model});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "")
      << "a killed save must leave no damaged checkpoint";
  if (!loaded)
    return 0;
  EXPECT_EQ(test::filled_with(*model), static_cast<double>(loaded->position.step));
  return loaded->position.step;
}

void save_step(const std::string& folder, int step) {
  auto model = test::big_model();
  test::fill(*model, step);
  save_checkpoint({.directory = folder}, {*model}, {.step = step});
}

std::vector<std::string> leftovers(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().find(".tmp-") != std::string::npos)
      names.push_back(entry.path());
  return names;
}

TEST(KilledSave, AtAnyMomentTheLastGoodOneLoads) {
  const test::TempFolder folder;
  std::mt19937 random(7);
  int64_t last = 0;
  size_t interrupted = 0;
  for (int round = 0; round < 12 && interrupted < 3; ++round) {
    Writer writer({folder.path()});
    int64_t said = 0;
    for (unsigned saves = 1 + random() % 2; saves > 0; --saves)
      said = writer.next_saved();
    ASSERT_GT(said, last);
    // Somewhere in the next save: at a random moment, or as soon as its folder is there.
    if (round % 2 == 0) {
      ::poll(nullptr, 0, static_cast<int>(random() % 12));
    } else {
      while (leftovers(folder.path()).empty())
        std::this_thread::yield();
    }
    writer.kill();
    interrupted += leftovers(folder.path()).empty() ? 0 : 1;
    last = loaded_step(folder.path());
    ASSERT_GE(last, said);
  }
  EXPECT_GT(interrupted, 0U) << "no kill met a save";
  save_step(folder.path(), static_cast<int>(last + 1));
  EXPECT_TRUE(leftovers(folder.path()).empty());
}

TEST(KilledSave, AtAnExactByteTheLastGoodOneLoads) {
  const test::TempFolder folder;
  save_step(folder.path(), 1);
  const auto whole = fs::file_size(folder / "step-1/model.safetensors");
  for (const auto limit : {uintmax_t{1}, uintmax_t{300}, whole / 2, whole - 1}) {
    Writer writer({folder.path(), std::to_string(limit)});
    EXPECT_EQ(writer.next_saved(), -1);
    const int status = writer.wait();
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGXFSZ);
    EXPECT_EQ(leftovers(folder.path()).size(), 1U);  // of this one; the one before was cleaned up
    EXPECT_EQ(loaded_step(folder.path()), 1);
  }
}

// A file that may not grow, as a full disk or quota: the write fails, the process lives.
TEST(FullDisk, AFailingWriteLeavesTheOldOnesAndSaysSo) {
  const test::TempFolder folder;
  save_step(folder.path(), 1);
  const auto whole = fs::file_size(folder / "step-1/model.safetensors");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  auto* const old_handler = ::signal(SIGXFSZ, SIG_IGN);
  for (const auto size : {uintmax_t{100}, whole / 2, whole - 1}) {
    const rlimit limit{size, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto message = message_of([&] { save_step(folder.path(), 2); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_THAT(message, AllOf(HasSubstr("model.safetensors"), HasSubstr("File too large")));
    EXPECT_TRUE(leftovers(folder.path()).empty());
    EXPECT_EQ(loaded_step(folder.path()), 1);
  }
  ::signal(SIGXFSZ, old_handler);
}

TEST(FullDisk, TooLittleSpaceIsSeenBeforeAnythingIsWritten) {
  const test::TempFolder folder;
  const test::SmallDisk disk(folder.path(), "6m");
  if (!disk.mounted())
    GTEST_SKIP() << "mounting a tmpfs is not permitted";
  save_step(folder.path(), 1);
  save_step(folder.path(), 2);
  try {
    save_step(folder.path(), 3);
    FAIL() << "saved on a full disk";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("free in '" + folder.path()));
  }
  EXPECT_TRUE(leftovers(folder.path()).empty());
  EXPECT_EQ(loaded_step(folder.path()), 2);
}

}  // namespace
}  // namespace muster
