#include "muster/supervise/cause.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

End code(int exit_code, Account account = Account::none) {
  return {.exit_code = exit_code, .account = account};
}

End signalled(int signal, Account account = Account::none) {
  return {.signal = signal, .account = account};
}

// `cause` after those that ended of it.
size_t found_after(std::vector<End> consequences, const End& cause) {
  consequences.push_back(cause);
  const size_t found = cause_among(consequences).index;
  return found == consequences.size() - 1 ? 0 : 1 + found;
}

TEST(CauseAmong, ASignalComesBeforeExitCodesThatSayNothing) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGBUS, SIGABRT, SIGPIPE}) {
    for (const size_t peers : {1, 2, 7})
      EXPECT_EQ(found_after(std::vector<End>(peers, code(1)), signalled(signal)), 0U)
          << signal << " " << peers;
  }
  EXPECT_EQ(found_after({signalled(SIGPIPE), signalled(SIGABRT)}, signalled(SIGKILL)), 0U);
  EXPECT_EQ(found_after({signalled(SIGPIPE)}, signalled(SIGABRT)), 0U)
      << "who writes to the dead gets SIGPIPE";
}

TEST(CauseAmong, OfExitCodesItIsTheOddOneOut) {
  EXPECT_EQ(found_after(std::vector<End>(7, code(1)), code(3)), 0U);
  EXPECT_EQ(found_after(std::vector<End>(7, code(3)), code(1)), 0U);
  EXPECT_EQ(found_after({code(1)}, code(3)), 0U) << "1 is the code of any error";
  EXPECT_EQ(found_after({code(1), code(1), code(1), code(255)}, code(3)), 4U)
      << "two are odd: the first";
}

TEST(CauseAmong, TheOddOneOutComesBeforeASignalThatManyHave) {
  EXPECT_EQ(found_after(std::vector<End>(7, signalled(SIGPIPE)), code(3)), 0U);
  EXPECT_EQ(found_after(std::vector<End>(7, signalled(SIGABRT)), code(1)), 0U);
  EXPECT_EQ(found_after({code(1), signalled(SIGABRT)}, signalled(SIGABRT)), 2U)
      << "two are not many";
}

TEST(CauseAmong, WhoTellsAnErrorOfItsOwnComesBeforeWhoSaysNothing) {
  EXPECT_EQ(
      found_after({signalled(SIGABRT), signalled(SIGPIPE), code(3)}, code(1, Account::own_error)),
      0U);
  EXPECT_EQ(found_after({code(1, Account::own_error)}, signalled(SIGKILL)), 0U);
}

TEST(CauseAmong, WhoHasLostAnotherIsTheLast) {
  EXPECT_EQ(
      found_after({signalled(SIGABRT, Account::lost_peer), signalled(SIGSEGV, Account::lost_peer)},
                  code(1)),
      0U);
  EXPECT_EQ(found_after({code(3, Account::connection)}, code(1)), 0U);
  EXPECT_EQ(found_after({code(1, Account::lost_peer)}, code(1, Account::connection)), 0U);
  EXPECT_EQ(found_after({code(1)}, signalled(SIGKILL, Account::lost_peer)), 0U)
      << "nobody is killed by a loss";
}

TEST(CauseAmong, SaysWhatItDoesNotKnow) {
  const Cause alike = cause_among({code(1), code(1, Account::lost_peer), code(1)});
  EXPECT_EQ(alike.index, 0U);
  EXPECT_TRUE(alike.is_known);
  EXPECT_THAT(alike.others, ElementsAre(2));
  EXPECT_FALSE(cause_among({code(1, Account::lost_peer), code(1, Account::lost_peer)}).is_known);
  EXPECT_THAT(cause_among({signalled(SIGKILL), signalled(SIGKILL)}).others, IsEmpty());
  EXPECT_THAT(cause_among({code(1, Account::own_error), code(1, Account::own_error)}).others,
              IsEmpty());
}

TEST(CauseAmong, OfAFewASignalBesideACodeIsNotCertain) {
  for (const int signal : {SIGABRT, SIGPIPE}) {
    for (const int exit_code : {1, 3}) {
      EXPECT_THAT(cause_among({code(exit_code), signalled(signal)}).others, ElementsAre(0));
      EXPECT_THAT(cause_among({signalled(signal), code(exit_code)}).others, ElementsAre(1));
      std::vector<End> eight(7, signalled(signal));
      eight.push_back(code(exit_code));
      EXPECT_THAT(cause_among(eight).others, IsEmpty()) << "the odd one out is known";
      EXPECT_THAT(cause_among({signalled(signal), code(exit_code, Account::lost_peer)}).others,
                  IsEmpty());
    }
  }
  EXPECT_THAT(cause_among({signalled(SIGPIPE), signalled(SIGABRT)}).others, IsEmpty());
}

}  // namespace
}  // namespace muster
