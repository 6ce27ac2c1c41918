#include "muster/tasks/hosts/line_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>
#include <vector>

namespace muster {
namespace {

struct Wire {
  Fd reading;
  Fd writing;
};

Wire make_wire() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

class LineChannelTest : public ::testing::Test {
 protected:
  LineHandlers handlers() {
    return {.line = [this](const std::string& line) { lines_.push_back(line); },
            .end =
                [this](const std::string& why) {
                  ++ends_;
                  why_ = why;
                }};
  }

  void run_until_end(EventLoop& loop) {
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (ends_ == 0 && Clock::now() < until)
      loop.run_once(until);
    EXPECT_EQ(ends_, 1);
  }

  Wire in_ = make_wire();
  Wire out_ = make_wire();
  std::vector<std::string> lines_;
  int ends_ = 0;
  std::string why_;
};

TEST_F(LineChannelTest, LinesAreHandedOnWhole) {
  EventLoop loop;
  LineChannel channel(std::move(in_.reading), std::move(out_.writing), 100);
  channel.attach(loop, handlers());
  write_all(in_.writing.get(), "one\n\ntw");
  loop.run_once(Clock::now() + std::chrono::seconds(30));
  EXPECT_EQ(lines_, (std::vector<std::string>{"one", ""}));
  write_all(in_.writing.get(), "o\n");
  in_.writing.reset();
  run_until_end(loop);
  EXPECT_EQ(lines_.back(), "two");
  EXPECT_EQ(why_, "");
}

TEST_F(LineChannelTest, AnEndInTheMiddleOfALineIsSaid) {
  EventLoop loop;
  LineChannel channel(std::move(in_.reading), std::move(out_.writing), 100);
  channel.attach(loop, handlers());
  write_all(in_.writing.get(), "one\nhalf");
  in_.writing.reset();
  run_until_end(loop);
  EXPECT_EQ(lines_, std::vector<std::string>{"one"});
  EXPECT_EQ(why_, "it ended in the middle of a line");
}

TEST_F(LineChannelTest, ALineThatIsTooLongEndsIt) {
  EventLoop loop;
  LineChannel channel(std::move(in_.reading), std::move(out_.writing), 100);
  channel.attach(loop, handlers());
  write_all(in_.writing.get(), "fine\n" + std::string(101, 'x'));
  run_until_end(loop);
  EXPECT_EQ(lines_, std::vector<std::string>{"fine"});
  EXPECT_NE(why_.find("at most 100 bytes"), std::string::npos) << why_;
}

TEST_F(LineChannelTest, AnotherLoopGoesOnWhereOneLeftOff) {
  EventLoop last;  // outlives the channel, which it calls
  LineChannel channel(std::move(in_.reading), std::move(out_.writing), 100);
  write_all(in_.writing.get(), "one\ntwo\nthree\n");
  {
    EventLoop loop;
    channel.attach(loop, {.line = [&](const std::string& line) {
                     lines_.push_back(line);
                     channel.detach();
                   }});
    loop.run_once(Clock::now() + std::chrono::seconds(30));
  }
  EXPECT_EQ(lines_, std::vector<std::string>{"one"});
  in_.writing.reset();
  channel.attach(last, handlers());
  run_until_end(last);
  EXPECT_EQ(lines_, (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_EQ(why_, "");
}

TEST_F(LineChannelTest, WhatIsNotTakenIsKeptAndTheOutputClosedBehindIt) {
  EventLoop loop;
  LineChannel channel(std::move(in_.reading), std::move(out_.writing), 100);
  bool drained = false;
  LineHandlers with_drained = handlers();
  with_drained.drained = [&] {
    drained = true;
  };
  channel.attach(loop, with_drained);
  const std::string line = std::string(99, 'x') + "\n";
  for (int i = 0; i < 10'000; ++i)
    channel.send(line);
  EXPECT_GT(channel.queued(), 0U);
  channel.close_output();
  std::string got;
  char buffer[65'536];
  ssize_t n = 1;
  while (n > 0) {
    if (channel.queued() > 0)
      loop.run_once(Clock::now());
    n = ::read(out_.reading.get(), buffer, sizeof(buffer));
    got.append(buffer, static_cast<size_t>(std::max<ssize_t>(0, n)));
  }
  EXPECT_EQ(got.size(), 1'000'000U);
  EXPECT_TRUE(drained);
}

// The loop ends first, and is not there any more when the channel goes on with another.
TEST_F(LineChannelTest, AHandlerThatThrowsLeavesNoLoopBehind) {
  LineChannel channel(std::move(in_.reading), std::move(out_.writing), 100);
  const auto read_one = [&] {
    EventLoop loop;
    const DetachedAtEnd detached(channel);
    channel.attach(loop, {.line = [](const std::string& line) { throw std::runtime_error(line); }});
    write_all(in_.writing.get(), "wrong\n");
    loop.run_once(Clock::now() + std::chrono::seconds(30));
  };
  EXPECT_THROW(read_one(), std::runtime_error);
  EventLoop last;
  channel.attach(last, handlers());
  in_.writing.reset();
  run_until_end(last);
}

}  // namespace
}  // namespace muster
