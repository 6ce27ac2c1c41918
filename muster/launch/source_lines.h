// From what a rank of muster::run says of its stack, to what people read: functions and source
// lines, as addr2line finds them in the program and its libraries. For the failure card; values and
// text, but for that program.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/launch/rank_exit.h"

namespace muster {

// `stack` with its lines "  #3 /path/program(+0x1a2b) symbol" as "  #3 function at file.cc:12", or,
// where there is no line, "  #3 function (program+0x1a2b)". Calls in a row inside of LibTorch or
// muster are counted only. Other lines stay; so do those of files that have changed since `taken`,
// which are of another program now. Blocking: some seconds at most, where a library is large.
std::string with_source_lines(const std::string& stack, WallTime taken = WallClock::now());

// For a rank that a signal ended and whose handler told of it in the error file: the stack becomes
// the exit's, and goes from the last `lines` of standard error.
void take_signal_stack(RankExit& exit, Strings& lines);

// The words of an exception that nobody caught become the message.
void take_uncaught_exception(RankExit& exit, const Strings& lines);

// The words of Python's faulthandler: the stack of the thread that got the signal becomes the
// exit's, and the error its message.
void take_python_fault(RankExit& exit, const Strings& lines);

// Lines of a Python stack, in which the calls of muster's module are counted only.
Strings with_musters_calls_folded(const Strings& lines);

}  // namespace muster
