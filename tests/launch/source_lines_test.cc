#include "muster/launch/source_lines.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(SourceLines, NamesFunctionsWhereNoLineIsKnown) {
  const std::string text = with_source_lines(
      "  #0 /no/such/program(+0x1a2b) _ZN6muster3runEv\n"
      "  #1 /no/such/program(+0x77)\n"
      "by hand\n"
      "  #2 /no/such/program(+0x78) _ZSt13__invoke_implIvRZ4mainEUlvE_EvvE::type std::__invoke");
  EXPECT_EQ(text,
            "  #0 muster::run() (program+0x1a2b)\n"
            "  #1 ?? (program+0x77)\n"
            "by hand");
}

TEST(SourceLines, TakesNoWordsOfAStackForACommand) {
  const std::string made = testing::TempDir() + "/made_by_a_stack";
  for (const std::string& offset : {"0x1;touch " + made + ";", "0x`touch " + made + "`", std::string("0x"),
                                    std::string("0x11112222333344445"), std::string("0x1 2")}) {
    const std::string stack = cat("  #0 /proc/self/exe(+", offset, ") f");
    EXPECT_EQ(with_source_lines(stack), stack);
  }
  with_source_lines(cat("  #0 /tmp/'; touch ", made, "; '(+0x1) f"));
  EXPECT_NE(::access(made.c_str(), F_OK), 0);
}

TEST(SourceLines, CountsTheCallsInsideOfLibTorch) {
  std::string stack = "  #0 /app/train(+0x1) inner\n";
  for (int i = 1; i < 9; ++i) stack += cat("  #", i, " /lib/libtorch_cpu.so(+0x", i, ") at_", i, "\n");
  const std::string text = with_source_lines(stack + "  #9 /app/train(+0x2) outer");
  EXPECT_THAT(text, HasSubstr("#1 at_1 (libtorch_cpu.so+0x1)\n     … 6 calls in LibTorch\n  #8 at_8 "));
  EXPECT_THAT(text, HasSubstr("#9 outer (train+0x2)"));
}

TEST(SourceLines, TakesTheStackFromWhatASignalLeft) {
  WorkerExit exit;
  exit.signal = SIGABRT;
  std::vector<std::string> lines = {"epoch 1",
                                    "terminate called after throwing an instance of 'io::Error'",
                                    "  what():  it's gone",
                                    "[rank 1] error: SIGABRT; its stack, innermost call first (…):",
                                    "  #0 /app/train(+0x1) f",
                                    "  #1 /app/train(+0x2)",
                                    "and later"};
  take_signal_stack(exit, lines);
  EXPECT_EQ(exit.stack, "  #0 /app/train(+0x1) f\n  #1 /app/train(+0x2)");
  EXPECT_EQ(exit.message, "io::Error: it's gone");
  EXPECT_THAT(lines, ElementsAre("epoch 1", HasSubstr("terminate"), HasSubstr("what()"), "and later"));
}

// It had told of a rank that the others waited for, and was killed then.
TEST(SourceLines, TakesNoOtherRanksStack) {
  WorkerExit exit;
  std::vector<std::string> lines = {
      "[rank 0] warning: rank 2: in step > tokenize for 21.0s; its stack, innermost call first:",
      "  #0 /app/train(+0x1) tokenize"};
  const std::vector<std::string> said = lines;
  for (const int signal : {SIGKILL, SIGSEGV}) {
    exit.signal = signal;
    take_signal_stack(exit, lines);
    EXPECT_EQ(exit.stack, "");
    EXPECT_EQ(lines, said);
  }
}

TEST(SourceLines, LeavesWhatNoSignalEnded) {
  WorkerExit exit;
  exit.exit_code = 1;
  std::vector<std::string> lines = {"terminate called after throwing an instance of 'X'"};
  take_signal_stack(exit, lines);
  EXPECT_EQ(exit.message, "");
  EXPECT_EQ(lines.size(), 1U);
  exit.signal = SIGSEGV;
  lines = {};
  take_signal_stack(exit, lines);
  EXPECT_EQ(exit.stack, "");
}

}  // namespace
}  // namespace muster
