#include "muster/train/metrics_writer.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/data/files.h"
#include "tests/device/scratch.h"

namespace muster::testing {
namespace {

TEST(Metrics, OneJsonObjectALine) {
  std::string folder = ::testing::TempDir() + "muster-metrics-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  MetricsWriter writer(folder + "/metrics.jsonl");
  writer.write({{"epoch", 1}, {"loss", 0.5}});
  writer.write({{"epoch", 2}, {"loss", std::nan("")}});
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
            "{\"epoch\":1,\"loss\":0.5}\n{\"epoch\":2,\"loss\":null}\n");
}

TEST(Metrics, ARunThatGoesOnHasEachStepOnce) {
  std::string folder = ::testing::TempDir() + "muster-metrics-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/metrics.jsonl";
  const std::string first =
      "{\"step\":10,\"loss\":1}\n{\"note\":\"no step\"}\n{\"step\":20,\"loss\":0.5}\n";
  const std::string later = "{\"step\":30,\"loss\":0.4}\n{\"note\":\"after 30\"}\n";
  write_file(path, first + later + "{\"step\":40,\"lo");  // it was killed
  MetricsWriter writer(path);
  EXPECT_EQ(writer.continue_after(20), 3);
  EXPECT_EQ(writer.continue_after(20), 0);
  writer.write({{"step", 30}});
  EXPECT_EQ(read_file(path), first + "{\"step\":30}\n");
  EXPECT_EQ(read_file(path + ".replaced"), later + "{\"step\":40,\"lo\n");
  EXPECT_EQ(writer.continue_after(0), 4) << "from the beginning, in the folder of an earlier run";
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(MetricsWriter("").continue_after(0), 0);
}

// Two paths to one file have one lock, also before the file is there.
TEST(Metrics, TheLockLiesBesideTheFileThatALinkNames) {
  std::string folder = ::testing::TempDir() + "muster-metrics-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::filesystem::create_directory(folder + "/there");
  std::filesystem::create_symlink("there/metrics.jsonl", folder + "/link");
  MetricsWriter writer(folder + "/link");
  writer.write({{"step", 1}});
  EXPECT_TRUE(std::filesystem::exists(folder + "/there/.metrics.jsonl.lock"));
  EXPECT_EQ(read_file(folder + "/there/metrics.jsonl"), "{\"step\":1}\n");
}

TEST(Metrics, AFolderThatIsNotThereIsNotMade) {
  const std::string folder = ::testing::TempDir() + "muster-metrics-nowhere";
  EXPECT_THROW(MetricsWriter(folder + "/metrics.jsonl"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(Metrics, AResultThatIsNoNumberSaysSo) {
  EXPECT_EQ(
      to_json_line(
          {{"epochs", 3}, {"loss", std::nan("")}, {"a", INFINITY}, {"b", -INFINITY}, {"c", 1e300}}),
      "{\"epochs\":3,\"loss\":\"NaN\",\"a\":\"Infinity\",\"b\":\"-Infinity\",\"c\":1e+300}");
}

TEST(Metrics, ALossThatIsNoNumberIsAnError) {
  EXPECT_NO_THROW(check_loss(-3, 7));
  try {
    check_loss(std::nan(""), 7);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "loss: expected a finite number, got NaN in step 7; lower the learning rate, or look "
              "at the data");
  }
}

// Another process, which writes to the file until it is killed.
class OtherWriter {
 public:
  explicit OtherWriter(const std::string& path) {
    std::array<int, 2> ready{};
    if (::pipe(ready.data()) != 0)
      throw std::runtime_error("pipe failed");
    pid_ = ::fork();
    if (pid_ == 0) {
      MetricsWriter writer(path);
      writer.write({{"step", 1}});
      const bool told = ::write(ready[1], "x", 1) == 1;
      while (told)
        ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char byte = 0;
    is_ready_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  ~OtherWriter() { end(); }
  OtherWriter(const OtherWriter&) = delete;
  OtherWriter& operator=(const OtherWriter&) = delete;

  void end() {
    if (pid_ <= 0)
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  bool is_ready() const { return is_ready_; }

 private:
  pid_t pid_ = -1;
  bool is_ready_ = false;
};

TEST(Metrics, AnotherProcessIsRefusedUntilItsWriterEnds) {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  OtherWriter other(path);
  ASSERT_TRUE(other.is_ready());
  EXPECT_THAT(
      [&] { MetricsWriter writer(path); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
          cat("expected no job that still writes there, got one (process ", other.pid(), " on "))));
  EXPECT_NO_THROW(MetricsWriter(folder / "others.jsonl")) << "another file";
  other.end();
  {
    MetricsWriter writer(path);
    MetricsWriter of_evaluation(folder.path() + "/./metrics.jsonl");
    writer.write({{"step", 2}});
    of_evaluation.write({{"step", 3}});
  }
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  EXPECT_THAT(test::names_in(folder.path()),
              ::testing::ElementsAre("metrics.jsonl", "others.jsonl"));
}

// The ranks of the attempt before may still be ending.
TEST(Metrics, ALaterAttemptOfTheLaunchSharesTheFile) {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const ScopedEnv launch("MUSTER_LAUNCH", "mine");
  const ScopedEnv first("MUSTER_ATTEMPT", "0");
  OtherWriter before(path);
  ASSERT_TRUE(before.is_ready());
  const ScopedEnv later("MUSTER_ATTEMPT", "1");
  EXPECT_NO_THROW(MetricsWriter(path).write({{"step", 2}}));
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(Metrics, WhatIsNoFileIsAnybodys) {
  const test::TempFolder folder;
  std::filesystem::create_symlink("/dev/null", folder / "metrics.jsonl");
  OtherWriter other(folder / "metrics.jsonl");
  ASSERT_TRUE(other.is_ready());
  EXPECT_NO_THROW(MetricsWriter(folder / "metrics.jsonl"));
}

TEST(Metrics, AnEmptyPathWritesNothingAndABadOneIsNamed) {
  EXPECT_NO_THROW(MetricsWriter("").write({{"epoch", 1}}));
  EXPECT_THROW(MetricsWriter("/no/such/folder/metrics.jsonl"), Error);
}

}  // namespace
}  // namespace muster::testing
