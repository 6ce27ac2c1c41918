#include "muster/base/error.h"

#include <gmock/gmock.h>

#include <cerrno>

#include "muster/base/refusal.h"
#include "muster/base/shortage.h"

namespace muster {
namespace {

TEST(Error, KeepsCodeMessageAndPlace) {
  const Error error(ErrorCode::timeout, "store get: expected 'k', got nothing");
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.message(), "store get: expected 'k', got nothing");
  EXPECT_STREQ(error.what(), error.message().c_str());
  EXPECT_THAT(error.where(), testing::MatchesRegex("error_test\\.cc:[0-9]+"));
}

TEST(Error, IsMadeOfPartsByItsCodesFunction) {
  const int line = __LINE__ + 1;
  const Error error = invalid_argument("rank ", 3, " of ", 2.5, std::string("!"));
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.message(), "rank 3 of 2.5!");
  EXPECT_EQ(error.where(), cat("error_test.cc:", line));
  EXPECT_EQ(failed_precondition(std::string("later")).code(), ErrorCode::failed_precondition);
  EXPECT_EQ(unavailable(7, " ways").message(), "7 ways");
}

TEST(Error, WhatItQuotesDisturbsNoTerminal) {
  const Error error(ErrorCode::io, "cannot open 'a\x1b[2Jb': gone\n\tat line 1");
  EXPECT_EQ(error.message(), "cannot open 'a?[2Jb': gone\n\tat line 1");
}

TEST(Error, LinesOfOthersHaveNoColoursAndOneKindOfEnd) {
  EXPECT_EQ(Error(ErrorCode::io, "\x1b[1;31mred\x1b[0m\r\nnext\rhalf").message(), "red\nnext?half");
}

TEST(Error, EveryCodeHasItsOwnName) {
  EXPECT_STREQ(to_string(ErrorCode::invalid_argument), "invalid_argument");
  EXPECT_STREQ(to_string(ErrorCode::failed_precondition), "failed_precondition");
  EXPECT_STREQ(to_string(ErrorCode::unavailable), "unavailable");
  EXPECT_STREQ(to_string(ErrorCode::timeout), "timeout");
  EXPECT_STREQ(to_string(ErrorCode::peer_failed), "peer_failed");
  EXPECT_STREQ(to_string(ErrorCode::backend_failed), "backend_failed");
  EXPECT_STREQ(to_string(ErrorCode::io), "io");
  EXPECT_STREQ(to_string(ErrorCode::internal), "internal");
}

TEST(Refusal, SaysWhatItsCallSaysAndWhereThatIs) {
  constexpr FileRefusal refuse_npy{"npy", "save it again"};
  const int line = __LINE__ + 2;
  try {
    refuse_npy("a.npy", "numbers", "records");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.message(), "npy: expected numbers in 'a.npy', got records; save it again");
    EXPECT_EQ(error.where(), cat("error_test.cc:", line));
  }
}

TEST(Refusal, SaysANextStepOfItsCallInPlaceOfItsOwn) {
  try {
    Refusal{"split", "add them up"}("10", "9", "pass fractions");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "split: expected 10, got 9; pass fractions");
  }
}

TEST(FailErrno, AddsTheSystemsWords) {
  try {
    fail_errno("cannot open 'f'", ENOENT);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_EQ(error.message(), "cannot open 'f': No such file or directory");
    EXPECT_THAT(error.where(), testing::StartsWith("error_test.cc:"));
  }
}

TEST(FailErrno, NamesTheLimitOfDescriptors) {
  try {
    fail_errno("cannot make a pipe", EMFILE);
    FAIL();
  } catch (const Shortage& error) {
    EXPECT_EQ(error.message(),
              "cannot make a pipe: Too many open files; raise the limit of descriptors (ulimit "
              "-n)");
  }
}

}  // namespace
}  // namespace muster
