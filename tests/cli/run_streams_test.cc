// The streams of the real program and of its ranks: what fills them, and readers that leave or
// stop.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>

#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

using testing::HasSubstr;

long peak_memory_of_children() {  // KiB
  rusage usage = {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return usage.ru_maxrss;
}

TEST(Run, AnEndlessLineIsPassedInPieces) {
  const ScratchFolder folder;
  ASSERT_EQ(muster(sh({"-q", "-n", "2"}, "echo x"), folder).code, 0);
  const long before = peak_memory_of_children();
  // 100 MB with no newline, on a console that is read all the time.
  Program program({"run",
                   "-q",
                   "-n",
                   "2",
                   "sh",
                   "-c",
                   "[ $RANK = 1 ] && exit 0; head -c 100000000 /dev/zero | tr '\\0' x"},
                  folder);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), 'x'), 100'000'000);
  EXPECT_TRUE(ran.out.starts_with("[0] x"));
#if !defined(__SANITIZE_ADDRESS__)  // which keeps what was freed, up to 256 MiB of it
  EXPECT_LT(peak_memory_of_children(), before + 25'000)
      << "KiB: the launcher's memory must not grow with the line";
#else
  EXPECT_LT(peak_memory_of_children(), before + 290'000);
#endif
}

TEST(Run, AReaderThatLeavesEndsTheWriter) {
  const ScratchFolder folder;
  const Ran ran = from_shell("\"$0\" run -q -n 1 yes | head -n 1", folder).finish();
  EXPECT_EQ(ran.out, "y\n");
}

TEST(Run, AFullDiskUnderTheConsoleEndsNobody) {
  const ScratchFolder folder;
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ProgramSettings settings;
  settings.stdout_fd = full.get();
  const Ran ran =
      muster({"run", "-q", "-n", "1", "head", "-c", "1000000", "/dev/zero"}, folder, settings);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("cannot write to standard output: No space left on device"));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << "said once";
}

TEST(Program, WhatDoesNotComeOutIsSaid) {
  const ScratchFolder folder;
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ProgramSettings settings;
  settings.stdout_fd = full.get();
  for (const char* const words :
       {"help", "--version", "run --help", "devices", "plan -n 2", "ps"}) {
    const Ran ran = muster(split(words, ' '), folder, settings);
    EXPECT_EQ(ran.code, 1) << words;
    EXPECT_THAT(ran.err, HasSubstr("cannot write to standard output: No space left")) << words;
  }
}

// The rank is started with the signal's default, as is every other.
TEST(Run, AFileThatMayGrowNoFurtherIsAsAFullDisk) {
  const ScratchFolder folder;
  const Ran ran =
      from_shell(
          "ulimit -f 8; \"$0\" run -q -n 1 sh -c 'head -c 1000000 /dev/zero; exit 3' >out; echo $?",
          folder)
          .finish();
  EXPECT_EQ(ran.out, "3\n") << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("cannot write to standard output: File too large"));
}

const char* const kFailing = "echo reason >&2; exit 7";

TEST(Run, AReaderOfStandardErrorThatIsGoneCostsNeitherCodeNorReport) {
  const ScratchFolder folder;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  const Fd write_end(ends[1]);
  ProgramSettings settings;
  settings.stderr_fd = write_end.get();
  EXPECT_EQ(muster(sh({"-n", "2", "--run-dir", "out"}, kFailing), folder, settings).code, 7);
  EXPECT_EQ(failure_of(folder)["exit_code"], 7);
}

// A pipe that is full and that nobody reads.
class FullPipe {
 public:
  explicit FullPipe(int later_flags) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_end_ = Fd(ends[0]);
    write_end_ = Fd(ends[1]);
    const std::string bytes(4096, 'x');
    while (::write(ends[1], bytes.data(), bytes.size()) > 0) {
    }
    ::fcntl(ends[1], F_SETFL, later_flags);
  }
  int fd() const { return write_end_.get(); }

 private:
  Fd read_end_;
  Fd write_end_;
};

TEST(Run, AReaderOfStandardErrorThatHasStoppedIsNotWaitedForForEver) {
  const ScratchFolder folder;
  const FullPipe blocking(0);
  const FullPipe nonblocking(O_NONBLOCK);
  std::vector<std::unique_ptr<Program>> programs;
  for (const FullPipe* pipe : {&blocking, &nonblocking}) {
    ProgramSettings settings;
    settings.stderr_fd = pipe->fd();
    const std::string run_dir = cat("out", programs.size());
    programs.push_back(std::make_unique<Program>(
        sh({"-n", "2", "-q", "--run-dir", run_dir}, "exit 7"), folder, settings));
  }
  for (size_t i = 0; i < programs.size(); ++i) {
    EXPECT_EQ(programs[i]->finish().code, 7);
    EXPECT_TRUE(std::filesystem::exists(cat(folder.path(), "/out", i, "/failure.json")));
  }
}

TEST(Run, AReportThatCannotBeWrittenDoesNotChangeTheCode) {
  const ScratchFolder folder;
  ASSERT_EQ(muster(sh({"-n", "1", "--run-dir", "out"}, "true"), folder).code, 0);
  std::filesystem::create_directories(folder.path() + "/out/failure.json/in-the-way");
  const Ran ran = muster(sh({"-n", "2", "--run-dir", "out"}, kFailing), folder);
  EXPECT_EQ(ran.code, 7);
  EXPECT_THAT(ran.err, HasSubstr("failed first: exit code 7"));
  EXPECT_THAT(ran.err, HasSubstr("failure.json': Is a directory"));
  EXPECT_THAT(ran.err, Not(HasSubstr("  report ")));
}

TEST(Run, AWorkingFolderThatIsGoneIsAnErrorInALine) {
  const ScratchFolder folder;
  const Ran ran =
      from_shell("mkdir gone; cd gone; rmdir ../gone; exec \"$0\" run -n 1 true", folder).finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("muster run: cannot find the folder"));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
}

TEST(Run, TheReportHasTheTimeOfTheFailure) {
  const ScratchFolder folder;
  // Rank 0 takes its time to end after it was told that rank 1 has failed.
  const Ran ran = muster(
      sh({"-n", "2", "--run-dir", "out"},
         "[ $RANK = 1 ] && { until [ -e ready ]; do :; done; date +%s > failed; exit 7; }; "
         "trap 'date +%s > told; sleep 2.2; exit 0' TERM; : > ready; while :; do sleep 0.01; done"),
      folder);
  EXPECT_EQ(ran.code, 7);
  std::tm time = {};
  const std::string text = failure_of(folder)["time"];
  ASSERT_NE(::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S%z", &time), nullptr) << text;
  const long zone = time.tm_gmtoff;  // timegm overwrites it
  const long at = ::timegm(&time) - zone;
  EXPECT_GE(at, std::stol(read_file(folder.path() + "/failed")));
  EXPECT_LE(at, std::stol(read_file(folder.path() + "/told")));
  EXPECT_THAT(ran.err, HasSubstr("when      " + text));
}

}  // namespace
}  // namespace muster
