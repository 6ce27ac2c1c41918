#include "muster/supervise/live_lines.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

class Live : public testing::Test {
 protected:
  void show(int rank, const std::string& text) {
    lines_.set(static_cast<size_t>(rank), rank, "[" + std::to_string(rank) + "] ", text);
  }
  // Without what tells the terminal to cut long lines.
  std::string drawn(size_t rows = 24) const {
    const std::string all = lines_.draw(rows);
    if (all.empty())
      return all;
    EXPECT_TRUE(all.starts_with("\033[?7l") && all.ends_with("\033[?7h")) << all;
    return all.substr(5, all.size() - 10);
  }

  LiveLines lines_;
};

TEST_F(Live, OneLineForAllThatShowTheSame) {
  for (const int rank : {0, 1, 2, 3})
    show(rank, "45%");
  EXPECT_EQ(drawn(), "[0-3] 45% ×4");
  show(2, "40%");
  EXPECT_EQ(drawn(), "[0,1,3] 45% ×3\n[2] 40%\r\033[1A") << "and back to where the first begins";
}

TEST_F(Live, WhatIsFinishedIsGone) {
  show(0, "45%");
  show(1, "50%");
  show(0, "");
  EXPECT_EQ(drawn(), "[1] 50%");
  show(1, "");
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(drawn(), "");
}

TEST_F(Live, NoMoreLinesThanTheTerminalHas) {
  for (int rank = 0; rank < 10; ++rank)
    show(rank, std::to_string(rank) + "%");
  EXPECT_EQ(drawn(3), "[0] 0%\n[1] 1%\n… and 8 more\r\033[2A");
  EXPECT_EQ(drawn(1), "… and 10 more");
  EXPECT_EQ(drawn(0), "");
}

TEST_F(Live, ColoursStayAndTheCursorDoesNotLeaveTheLine) {
  show(0, "\033[32mgreen\033[A\033[2K\b");
  EXPECT_EQ(drawn(), "[0] \033[32mgreen\033[0m");
  show(0, "cut short \033[3");
  EXPECT_EQ(drawn(), "[0] cut short ");
}

TEST(DrawsAnew, NotOnADumbTerminal) {
  EXPECT_TRUE(draws_anew("xterm-256color"));
  EXPECT_FALSE(draws_anew("dumb"));
  EXPECT_FALSE(draws_anew(""));
}

}  // namespace
}  // namespace muster
