#include "muster/supervise/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// Standard output goes to a file while this lives.
class CaughtStdout {
 public:
  CaughtStdout() { testing::internal::CaptureStdout(); }
  std::string text() { return testing::internal::GetCapturedStdout(); }
};

// What the console shows when one stream with prefix "[0] " prints `pieces`, one write each.
std::string shown(const std::vector<std::string>& pieces, const std::string& prefix = "[0] ") {
  CaughtStdout caught;
  {
    EventLoop loop;
    Output output(loop);
    const auto stream = output.open({.console_fd = 1, .prefix = prefix});
    for (const std::string& piece : pieces) {
      write_all(stream.child_end.get(), piece);
      loop.run_once(Clock::now());
    }
    output.finish();
  }
  return caught.text();
}

TEST(Output, PrefixesEveryLine) {
  EXPECT_EQ(shown({"one\ntwo\n"}), "[0] one\n[0] two\n");
  EXPECT_EQ(shown({"o", "ne\nt", "wo\n"}), "[0] one\n[0] two\n");
  EXPECT_EQ(shown({"\n\n"}), "[0] \n[0] \n");
  EXPECT_EQ(shown({"no newline"}), "[0] no newline");
}

TEST(Output, LetsProgressBarsLive) {
  EXPECT_EQ(shown({"\r10%", "\r20%\n"}), "\r[0] 10%\r[0] 20%\n");
  EXPECT_EQ(shown({"dos\r\nline\r", "\n"}), "[0] dos\r\n[0] line\r\n");
}

TEST(Output, ShowsAPromptAfterAMoment) {
  CaughtStdout caught;
  {
    EventLoop loop;
    Output output(loop);
    const auto stream = output.open({.console_fd = 1, .prefix = "[0] "});
    write_all(stream.child_end.get(), "name? ");
    loop.run_once(std::nullopt);  // reads it
    loop.run_once(std::nullopt);  // the time after which it is shown
    write_all(stream.child_end.get(), "thanks\n");
    output.finish();
  }
  EXPECT_EQ(caught.text(), "[0] name? thanks\n");
}

TEST(Output, NeverMixesLinesOfStandardOutputAndErrorInOnePlace) {
  const Fd own_stderr(::dup(STDERR_FILENO));
  CaughtStdout caught;
  ::dup2(STDOUT_FILENO, STDERR_FILENO);
  {
    EventLoop loop;
    Output output(loop);
    const auto out = output.open({.console_fd = 1, .prefix = "[0] "});
    const auto err = output.open({.console_fd = 2, .prefix = "[0] "});
    write_all(out.child_end.get(), "half");
    loop.run_once(std::nullopt);  // reads it
    loop.run_once(std::nullopt);  // the time after which it is shown
    write_all(err.child_end.get(), "whole\n");
    loop.run_once(std::nullopt);
    output.finish();
  }
  ::dup2(own_stderr.get(), STDERR_FILENO);
  EXPECT_EQ(caught.text(), "[0] half\n[0] whole\n");
}

TEST(Output, PassesBytesUntouchedWithoutPrefix) {
  std::string bytes;
  for (int i = 0; i < 1024; ++i)
    bytes += static_cast<char>(i);
  EXPECT_EQ(shown({bytes}, ""), bytes);
}

TEST(Output, KeepsNonUtf8BytesInLines) {
  const std::string line("\xff\xfe\x80\0 x\n", 7);
  EXPECT_EQ(shown({line}), "[0] " + line);
}

TEST(Output, NeverMixesLinesOfTwoStreams) {
  CaughtStdout caught;
  {
    EventLoop loop;
    Output output(loop);
    const auto one = output.open({.console_fd = 1, .prefix = "[0] "});
    const auto two = output.open({.console_fd = 1, .prefix = "[1] "});
    const std::string line(100'000, 'x');  // longer than what is held back
    std::atomic<bool> written = false;
    std::thread writer([&] {
      write_all(one.child_end.get(), line + "\n");
      written = true;
    });
    // The pipe holds less than the line, so it comes in pieces, with the other stream's lines
    // between.
    while (!written) {
      write_all(two.child_end.get(), "short\n");
      loop.run_once(Clock::now() + milliseconds(1));
    }
    writer.join();
    output.finish();
  }
  size_t x_count = 0;
  for (const std::string& line : split(caught.text(), '\n')) {
    if (line.empty())
      continue;
    const bool short_line = line == "[1] short";
    const bool piece =
        line.starts_with("[0] x") && line.find_first_not_of('x', 4) == std::string::npos;
    EXPECT_TRUE(short_line || piece) << line.substr(0, 80);
    if (piece)
      x_count += line.size() - 4;
  }
  EXPECT_EQ(x_count, 100'000U);
}

TEST(Output, CopiesToAFileAndKeepsTheEnd) {
  const ScratchFolder scratch;
  EventLoop loop;
  Output output(loop);
  const auto stream = output.open(
      {.console_fd = -1, .prefix = "[0] ", .file = scratch.path() + "/log", .tail_bytes = 64});
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = cat("line ", i, "\n");
    all += line;
    write_all(stream.child_end.get(), line);
    loop.run_once(Clock::now());
  }
  output.finish();
  EXPECT_EQ(read_file(scratch.path() + "/log"), all);
  EXPECT_THAT(output.last_lines(stream.id, 2), ElementsAre("line 998", "line 999"));
}

TEST(Output, KnowsWhoseLastLinesAreInSight) {
  CaughtStdout caught;
  EventLoop loop;
  Output output(loop);
  const auto open = [&](const char* prefix) {
    return output.open({.console_fd = 1, .prefix = prefix, .tail_bytes = 64});
  };
  const auto first = open("[0] ");
  const auto second = open("[1] ");
  const auto unseen = output.open({.console_fd = -1, .tail_bytes = 64});
  const auto say = [&](const Output::Opened& stream, const std::string& text) {
    write_all(stream.child_end.get(), text);
    loop.run_once(Clock::now());
  };
  say(first, "the disk is full\n");
  say(unseen, "nobody sees this\n");
  EXPECT_TRUE(output.in_sight(first.id));
  EXPECT_FALSE(output.in_sight(unseen.id));
  say(second, "and so I end\n");
  EXPECT_TRUE(output.in_sight(first.id)) << "a line below it";
  for (int i = 0; i < 100; ++i)
    say(second, cat("step ", i, " of the other\n"));
  EXPECT_FALSE(output.in_sight(first.id));
  EXPECT_TRUE(output.in_sight(second.id));
  output.finish();
  EXPECT_TRUE(caught.text().starts_with("[0] the disk is full\n[1] and so I end\n"));
}

// A pipe as a console that somebody reads, or does not.
struct ConsolePipe {
  ConsolePipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
  }
  std::string read_all() const {
    ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[65536];
    for (ssize_t n = 0; (n = ::read(read_end.get(), buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  Fd read_end;
  Fd write_end;
};

TEST(Console, LeavesTheSharedDescriptorBlocking) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(loop, pipe.write_end.get());
  console.write("hello");
  EXPECT_EQ(pipe.read_all(), "hello");
  EXPECT_EQ(::fcntl(pipe.write_end.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(Console, AsksForAPauseWhenTheReaderIsSlowAndLosesNothing) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(
      loop, pipe.write_end.get(), {.buffer_bytes = 1000, .stalled_after = milliseconds(60'000)});
  bool room = false;
  console.on_room = [&] {
    room = true;
  };
  std::string sent;
  for (int i = 0; !console.full(); ++i) {
    const std::string text = cat("line ", i, "\n");
    sent += text;
    console.write(text);
  }
  std::string got;
  while (!room) {
    got += pipe.read_all();
    loop.run_once(Clock::now() + milliseconds(10));
  }
  console.flush();
  got += pipe.read_all();
  EXPECT_EQ(got, sent);
}

// Two ranks: one has paused at a full buffer, the other still writes while the reader takes some of
// it.
TEST(Console, SaysThatThereIsRoomAlsoToThoseThatPausedFirst) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(loop, pipe.write_end.get(), {.buffer_bytes = 400'000});
  bool room = false;
  console.on_room = [&] {
    room = true;
  };
  while (!console.full())
    console.write(std::string(100'000, 'a'));
  while (console.full() && !room) {
    pipe.read_all();
    loop.run_once(Clock::now());
    if (!room)
      console.write("b");  // less than full, more than half
  }
  EXPECT_TRUE(room) << "full was taken back without a word";
}

TEST(Console, WaitsForAPipeAsForATerminalFromWhereOneStops) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(loop, pipe.write_end.get(), {.stalled_after = milliseconds(200)});
  console.write(std::string(200'000, 'a'));  // more than the pipe takes
  bool stops = false;
  Clock::time_point stopped;
  loop.call_at(Clock::now() + milliseconds(300), [&] {
    stops = true;
    stopped = Clock::now();
  });
  console.flush([&] { return stops; });
  EXPECT_GE(Clock::now() - stopped, milliseconds(200));
}

// Two streams of whole lines, all written before, whose reader begins late: a line that a full
// console cut in two stays one.
TEST(Output, CutsNoLineWhileItWaitsForTheReader) {
  constexpr int kLines = 37'000;
  const ConsolePipe pipe;
  const Fd before(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  ::dup2(pipe.write_end.get(), STDOUT_FILENO);
  std::string got;
  {
    EventLoop loop;
    Output output(loop, {.buffer_bytes = 100'000});
    for (const char* prefix : {"[0] ", "[1] "}) {
      const auto stream = output.open({.console_fd = 1, .prefix = prefix});
      ASSERT_GE(::fcntl(stream.child_end.get(), F_SETPIPE_SZ, 1 << 20), 1 << 20);
      std::string text;
      for (int i = 0; i < kLines; ++i)
        text += "a line of 27 characters ...\n";
      write_all(stream.child_end.get(), text);
    }
    const auto until =
        Clock::now() + milliseconds(300);  // three times what a quiet line is waited for
    while (Clock::now() < until)
      loop.run_once(until);
    std::thread reader([&] {
      char buffer[65536];
      while (!got.ends_with("the end\n")) {
        const ssize_t n = ::read(pipe.read_end.get(), buffer, sizeof(buffer));
        if (n <= 0)
          break;
        got.append(buffer, static_cast<size_t>(n));
      }
    });
    output.finish();
    write_all(STDOUT_FILENO, "the end\n");
    reader.join();
  }
  ::dup2(before.get(), STDOUT_FILENO);
  const auto lines = split(got, '\n');
  EXPECT_EQ(lines.size(), 2U * kLines + 2);  // "the end", and nothing after it
  EXPECT_EQ(std::count_if(lines.begin(),
                          lines.end(),
                          [](const std::string& line) {
                            return line.ends_with("] a line of 27 characters ...");
                          }),
            2 * kLines);
}

TEST(Console, LosesNothingOfAPipeWhoseReaderPauses) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(
      loop, pipe.write_end.get(), {.buffer_bytes = 1000, .stalled_after = milliseconds(1)});
  std::string sent;
  while (!console.full()) {
    sent += std::string(100, 'a');
    console.write(std::string(100, 'a'));
  }
  loop.run_once(Clock::now() + milliseconds(20));  // many times as long as a terminal is waited for
  EXPECT_TRUE(console.full());
  sent += "after\n";
  console.write("after\n");
  std::string got;
  std::thread reader([&] {
    char buffer[65536];
    while (got.size() < sent.size()) {
      const ssize_t n = ::read(pipe.read_end.get(), buffer, sizeof(buffer));
      if (n > 0)
        got.append(buffer, static_cast<size_t>(n));
    }
  });
  console.flush();
  reader.join();
  EXPECT_EQ(got, sent);
}

TEST(Console, SaysAtTheEndWhatWasLost) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(
      loop,
      pipe.write_end.get(),
      {.buffer_bytes = 1000, .stalled_after = milliseconds(20), .pipes_may_stall = true});
  while (!console.full())
    console.write(std::string(100, 'a'));
  while (console.full())
    loop.run_once(std::nullopt);
  console.write(std::string(300, 'b'));
  std::string got = pipe.read_all();
  console.flush();
  got += pipe.read_all();
  EXPECT_THAT(got, testing::HasSubstr("[muster] 300 B of output not shown here"));
}

TEST(Console, AJobThatIsStoppedWaitsForNoPipe) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(
      loop, pipe.write_end.get(), {.buffer_bytes = 1000, .stalled_after = milliseconds(20)});
  while (!console.full())
    console.write(std::string(100, 'a'));
  testing::internal::CaptureStderr();
  console.flush([] { return true; });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("of output not shown"));
}

TEST(Console, GoesOnWithoutAReaderThatStoppedAndSaysWhatWasLost) {
  const ConsolePipe pipe;
  EventLoop loop;
  Console console(
      loop,
      pipe.write_end.get(),
      {.buffer_bytes = 1000, .stalled_after = milliseconds(20), .pipes_may_stall = true});
  while (!console.full())
    console.write(std::string(100, 'a'));
  while (console.full())
    loop.run_once(std::nullopt);  // until it counts as stopped
  console.write(std::string(300, 'b'));
  std::string got = pipe.read_all();
  loop.run_once(Clock::now() + milliseconds(10));
  console.write("after\n");
  console.flush();
  got += pipe.read_all();
  EXPECT_EQ(got.find("bb"), std::string::npos);
  EXPECT_THAT(got, testing::HasSubstr("[muster] 300 B of output not shown here"));
  EXPECT_TRUE(got.ends_with("after\n"));
}

TEST(Console, DropsWhatAFullDiskRefusesAndGoesOnWhenThereIsRoom) {
  const ScratchFolder scratch;
  const Fd file(::open(scratch.write("console", "").c_str(), O_WRONLY | O_CLOEXEC));
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small = {.rlim_cur = 100, .rlim_max = limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  EventLoop loop;
  Console console(loop, file.get());
  for (int i = 0; i < 3; ++i)
    console.write(std::string(100, 'a'));
  EXPECT_FALSE(console.closed());
  EXPECT_FALSE(console.full());
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, before);
  console.write("after\n");
  EXPECT_EQ(read_file(scratch.path() + "/console"),
            cat(std::string(100, 'a'),
                "\n[muster] 200 B of output not shown here: File too large ",
                "(--tee 3 keeps it in files)\nafter\n"));
}

TEST(Console, NoticesThatTheReaderIsGone) {
  struct sigaction ignore = {};
  struct sigaction before = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  ConsolePipe pipe;
  EventLoop loop;
  Console console(loop, pipe.write_end.get());
  pipe.read_end.reset();
  console.write("hello");
  EXPECT_TRUE(console.closed());
  ::sigaction(SIGPIPE, &before, nullptr);
}

}  // namespace
}  // namespace muster
