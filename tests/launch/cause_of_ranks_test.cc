#include "muster/launch/cause.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "muster/launch/exit_report.h"
#include "muster/launch/rank_exit_json.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

RankExit failed(int rank, int exit_code, int signal = 0, milliseconds at = milliseconds(0)) {
  return {.rank = rank,
          .exit_code = exit_code,
          .signal = signal,
          .at = std::chrono::system_clock::time_point(at)};
}

std::vector<int> ranks_of(const std::vector<RankExit>& exits) {
  std::vector<int> ranks;
  for (const RankExit& exit : exits)
    ranks.push_back(exit.rank);
  return ranks;
}

TEST(CauseOfRanks, ComesFirstAndTheOthersKeepTheirOrder) {
  std::vector<RankExit> exits = {
      failed(4, 0), failed(2, 1), failed(0, 1), failed(3, 0, SIGABRT), failed(1, 1)};
  put_cause_first(exits);
  EXPECT_THAT(ranks_of(exits), ElementsAre(4, 3, 2, 0, 1));
  EXPECT_EQ(first_failure(exits)->rank, 3);
}

TEST(CauseOfRanks, IsWhatWasReplacedSoonBeforeARankLostIt) {
  const std::vector<RankExit> replaced = {failed(1, 3)};
  for (const auto& [after, first] :
       {std::pair(milliseconds(5'000), 1), std::pair(milliseconds(100'000), 0)}) {
    std::vector<RankExit> exits = {failed(0, 1, 0, after), failed(1, 0, SIGTERM, after)};
    exits[0].facts.code = "peer_failed";
    exits[1].sent_signal = SIGTERM;
    put_replaced_first(exits, replaced);
    EXPECT_EQ(first_failure(exits)->rank, first);
    EXPECT_EQ(exits.size(), 2);
  }
  std::vector<RankExit> own = {failed(0, 1)};
  put_replaced_first(own, replaced);
  EXPECT_EQ(first_failure(own)->rank, 0);
}

TEST(CauseOfRanks, WhatMusterEndedIsNone) {
  std::vector<RankExit> exits = {failed(2, 1), failed(0, 0, SIGKILL)};
  exits[1].sent_signal = SIGKILL;
  put_cause_first(exits);
  EXPECT_THAT(ranks_of(exits), ElementsAre(2, 0));
}

TEST(CauseOfRanks, WhereAFailureEndsNobodyItIsTheMomentThatCounts) {
  std::vector<RankExit> exits = {failed(2, 1),
                                 failed(1, 0, SIGABRT, milliseconds(20)),
                                 failed(0, 0, SIGKILL, milliseconds(5'000))};
  put_cause_first(exits, true);
  EXPECT_THAT(ranks_of(exits), ElementsAre(1, 2, 0));
  put_cause_first(exits);
  EXPECT_THAT(ranks_of(exits), ElementsAre(0, 1, 2)) << "else all failures are of one moment";
}

// The time of day may be set back or forth between two ends on one host.
TEST(CauseOfRanks, AClockThatJumpsChangesNoOrder) {
  for (const milliseconds jump : {milliseconds(-3'600'000), milliseconds(3'600'000)}) {
    std::vector<RankExit> exits = {failed(0, 0), failed(1, 1), failed(2, 0, SIGABRT)};
    const milliseconds ends[] = {milliseconds(1'000), milliseconds(6'000), milliseconds(6'010)};
    for (size_t i = 0; i < exits.size(); ++i) {
      exits[i].host = "a";
      exits[i].host_clock = ends[i];
      exits[i].at += ends[i];
    }
    exits[1].facts = {.code = "peer_failed", .lost_ranks = {0}};
    exits[1].at += jump;
    ASSERT_NE(left_early(exits, exits[1]), nullptr) << jump.count();
    EXPECT_EQ(left_early(exits, exits[1])->rank, 0);
    std::vector<RankExit> goes_on = exits;
    put_cause_first(goes_on, true);
    EXPECT_THAT(ranks_of(goes_on), ElementsAre(0, 2, 1)) << "a crash within one moment";
    exits[2].host_clock = exits[1].host_clock + std::chrono::minutes(1);
    put_cause_first(exits, true);
    EXPECT_THAT(ranks_of(exits), ElementsAre(0, 1, 2)) << "another moment";
  }
}

// For the hosts of a job, failures are told without their last lines.
TEST(CauseOfRanks, IsFoundWithoutTheWords) {
  std::vector<RankExit> exits;
  for (int rank = 0; rank < 7; ++rank)
    exits.push_back(failed(rank, 1));
  for (RankExit& exit : exits)
    exit.last_lines = {"[gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:7"};
  exits.push_back(failed(7, 1));
  exits = brief(exits);
  ASSERT_TRUE(exits[6].last_lines.empty());
  for (RankExit& exit : exits)
    exit = rank_exit_from_json(to_json(exit));
  put_cause_first(exits);
  EXPECT_EQ(exits[0].rank, 7);
}

TEST(CauseOfRanks, FactsGoToOtherHosts) {
  RankExit told = failed(0, 1);
  told.facts = {.code = "peer_failed", .lost_ranks = {3}, .left_early = true};
  told.master_port = 29511;
  const RankExit heard = rank_exit_from_json(to_json(told));
  EXPECT_EQ(heard.facts.code, "peer_failed");
  EXPECT_THAT(heard.facts.lost_ranks, ElementsAre(3));
  EXPECT_TRUE(heard.facts.left_early);
  EXPECT_EQ(heard.facts.account, Account::lost_peer);
  EXPECT_EQ(heard.master_port, 29511);
}

TEST(CauseOfRanks, AKillIsNoLossWhateverWasSaid) {
  RankExit killed = failed(0, 0, SIGKILL);
  killed.last_lines = {"[gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:7"};
  EXPECT_FALSE(lost_a_peer(killed));
  killed.signal = SIGSEGV;
  EXPECT_TRUE(lost_a_peer(killed)) << "on its way out";
}

}  // namespace
}  // namespace muster
