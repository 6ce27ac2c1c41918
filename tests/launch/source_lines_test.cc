#include "muster/launch/source_lines.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

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

// The frames of a program that was built since the failure would be wrong ones.
TEST(SourceLines, AProgramOfTheFutureWasThereBeforeTheClockWasSetBack) {
  const ScratchFolder folder;
  const std::string program = folder.write("program", "");
  const std::string stack = cat("  #0 ", program, "(+0x1a2b) _ZN6muster3runEv");
  const auto now = std::chrono::system_clock::now();
  EXPECT_EQ(with_source_lines(stack, now - std::chrono::hours(1)), stack) << "built anew";
  std::filesystem::last_write_time(
      program, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(with_source_lines(stack, now), "  #0 muster::run() (program+0x1a2b)");
}

TEST(SourceLines, TakesNoWordsOfAStackForACommand) {
  const std::string made = testing::TempDir() + "/made_by_a_stack";
  for (const std::string& offset : {"0x1;touch " + made + ";",
                                    "0x`touch " + made + "`",
                                    std::string("0x"),
                                    std::string("0x11112222333344445"),
                                    std::string("0x1 2")}) {
    const std::string stack = cat("  #0 /proc/self/exe(+", offset, ") f");
    EXPECT_EQ(with_source_lines(stack), stack);
  }
  with_source_lines(cat("  #0 /tmp/'; touch ", made, "; '(+0x1) f"));
  EXPECT_NE(::access(made.c_str(), F_OK), 0);
}

TEST(SourceLines, CountsTheCallsInsideOfLibTorch) {
  std::string stack = "  #0 /app/train(+0x1) inner\n";
  for (int i = 1; i < 9; ++i)
    stack += cat("  #", i, " /lib/libtorch_cpu.so(+0x", i, ") at_", i, "\n");
  const std::string text = with_source_lines(stack + "  #9 /app/train(+0x2) outer");
  EXPECT_THAT(text,
              HasSubstr("#1 at_1 (libtorch_cpu.so+0x1)\n     … 6 calls in LibTorch\n  #8 at_8 "));
  EXPECT_THAT(text, HasSubstr("#9 outer (train+0x2)"));
}

TEST(SourceLines, CountsTheCallsInsideOfMuster) {
  std::string stack = "  #0 /lib/libmuster.so(+0x1) at_0\n";
  for (int i = 1; i < 6; ++i)
    stack += cat("  #", i, " /lib/libmuster.so(+0x", i, ") at_", i, "\n");
  const std::string text = with_source_lines(stack + "  #6 /app/train(+0x2) outer");
  EXPECT_EQ(text,
            "  #0 at_0 (libmuster.so+0x1)\n     … 4 calls in muster\n  #5 at_5 (libmuster.so+0x5)\n"
            "  #6 outer (train+0x2)");
  const std::string linked = with_source_lines(
      "  #0 /app/train(+0x1) _ZN6muster1fEv\n  #1 /app/train(+0x2) _ZN6muster1gEv\n"
      "  #2 /app/train(+0x3) _ZN6muster1hEv\n  #3 /app/train(+0x4) _ZN6muster1iEv\n  #4 "
      "/app/train(+0x5) "
      "main");
  EXPECT_THAT(linked, HasSubstr("2 calls in muster")) << "into the program";
}

TEST(SourceLines, CountsMustersCallsOfAPythonStack) {
  EXPECT_THAT(with_musters_calls_folded(
                  {"Traceback (most recent call last):",
                   "  File \"/app/train.py\", line 7, in <module>",
                   "    dist.init_process_group(\"muster\")",
                   "  File \"/env/site-packages/muster/__init__.py\", line 71, in _make",
                   "    return make_shm(store)",
                   "           ^^^^^^^^^^^^^^^",
                   "  File \"/env/site-packages/muster/__init__.py\", line 51, in _choose",
                   "    raise ValueError(",
                   "ValueError: MUSTER_BACKEND"}),
              ElementsAre(HasSubstr("Traceback"),
                          HasSubstr("train.py"),
                          HasSubstr("init_process_group"),
                          "    … 2 calls in muster",
                          "ValueError: MUSTER_BACKEND"));
}

RankExit told_of(int signal, const std::string& name) {
  RankExit exit;
  exit.signal = signal;
  exit.facts = {.signal = name,
                .said = {"[rank 1] error: SIGABRT; its stack",
                         "  #0 /app/train(+0x1) f",
                         "  #1 /app/train(+0x2)"}};
  return exit;
}

TEST(SourceLines, TakesTheStackThatASignalsHandlerTold) {
  RankExit exit = told_of(SIGABRT, "SIGABRT");
  std::vector<std::string> lines = {"epoch 1",
                                    "terminate called after throwing an instance of 'io::Error'",
                                    "  what():  it's gone"};
  lines.insert(lines.end(), exit.facts.said.begin(), exit.facts.said.end());
  lines.emplace_back("and later");
  take_signal_stack(exit, lines);
  take_uncaught_exception(exit, lines);
  EXPECT_EQ(exit.stack, "  #0 /app/train(+0x1) f\n  #1 /app/train(+0x2)");
  EXPECT_EQ(exit.message, "io::Error: it's gone");
  EXPECT_THAT(lines,
              ElementsAre("epoch 1", HasSubstr("terminate"), HasSubstr("what()"), "and later"));
}

// Words like those of a handler are anybody's.
TEST(SourceLines, TakesNoStackFromWords) {
  RankExit exit;
  exit.signal = SIGSEGV;
  std::vector<std::string> lines = {"[rank 1] error: SIGSEGV; its stack, innermost call first (…):",
                                    "  #0 /app/train(+0x1) tokenize"};
  const std::vector<std::string> said = lines;
  take_signal_stack(exit, lines);
  EXPECT_EQ(exit.stack, "");
  EXPECT_EQ(lines, said);
}

TEST(SourceLines, TakesNoStackOfAnotherEnd) {
  for (const int signal : {0, SIGKILL}) {
    RankExit exit = told_of(signal, "SIGABRT");
    std::vector<std::string> lines = exit.facts.said;
    take_signal_stack(exit, lines);
    EXPECT_EQ(exit.stack, "");
    EXPECT_EQ(lines.size(), 3U);
  }
  RankExit exit;
  exit.exit_code = 1;
  take_uncaught_exception(exit, {"terminate called after throwing an instance of 'X'"});
  EXPECT_EQ(exit.message, "");
}

TEST(SourceLines, TakesTheStackThatPythonsFaulthandlerPrints) {
  RankExit exit;
  exit.signal = SIGSEGV;
  take_python_fault(exit,
                    {"epoch 1",
                     "Fatal Python error: Segmentation fault",
                     "",
                     "Thread 0x00007f0000000001 (most recent call first):",
                     "  File \"/app/load.py\", line 3 in read",
                     "",
                     "Current thread 0x00007f0000000002 (most recent call first):",
                     "  File \"/app/train.py\", line 9 in step",
                     "  File \"/app/train.py\", line 12 in <module>",
                     "",
                     "Extension modules: numpy.core (total: 1)"});
  EXPECT_EQ(exit.message, "Fatal Python error: Segmentation fault");
  EXPECT_EQ(exit.stack,
            "Current thread 0x00007f0000000002 (most recent call first):\n  File "
            "\"/app/train.py\", line 9 "
            "in step\n"
            "  File \"/app/train.py\", line 12 in <module>");
  RankExit other;
  other.signal = SIGSEGV;
  take_python_fault(other, {"Fatal Python error: Segmentation fault"});
  take_python_fault(other, {"Current thread 0x1 (most recent call first):"});
  EXPECT_EQ(other.stack + other.message, "");
}

}  // namespace
}  // namespace muster
