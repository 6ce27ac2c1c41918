#include "muster/cluster/messages.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/cluster/agent_spec.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/planner.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

TEST(Messages, AReportIsReadBackAsItWas) {
  Report report{.kind = Report::Kind::join, .from = "id", .number = 7, .round = 2};
  report.facts = HostFacts{.id = "id",
                           .node_rank = 1,
                           .nproc = 4,
                           .address = "10.0.0.2",
                           .master_port = 4711,
                           .store = "tcp://10.0.0.2:1",
                           .muster_version = "0.1.0",
                           .masks = {.cuda = "", .rocr = std::nullopt, .hip = "1"},
                           .host = gpu_host(1, 8)};
  report.exits = {{.rank = 3,
                   .local_rank = 1,
                   .host = "b",
                   .device = "GPU-1",
                   .pid = 99,
                   .signal = SIGSEGV,
                   .cause = "killed",
                   .message = "m",
                   .stack = "s",
                   .last_lines = {"one", "two"},
                   .stderr_log = "/log",
                   .after = std::chrono::milliseconds(1500),
                   .at = std::chrono::system_clock::time_point(std::chrono::milliseconds(1234567)),
                   .host_clock = std::chrono::milliseconds(4321)}};
  report.stopped_by = SIGTERM;
  report.error = "e";
  report.exit_code = 5;
  const Report read = report_from_text(to_text(report));
  EXPECT_EQ(read.kind, report.kind);
  EXPECT_EQ(read.from, report.from);
  EXPECT_EQ(read.number, report.number);
  EXPECT_EQ(read.round, report.round);
  EXPECT_EQ(read.facts, report.facts);
  EXPECT_EQ(read.stopped_by, report.stopped_by);
  EXPECT_EQ(read.error, report.error);
  EXPECT_EQ(read.exit_code, report.exit_code);
  ASSERT_EQ(read.exits.size(), 1U);
  EXPECT_EQ(read.exits[0].signal, SIGSEGV);
  EXPECT_EQ(read.exits[0].last_lines, report.exits[0].last_lines);
  EXPECT_EQ(read.exits[0].after, report.exits[0].after);
  EXPECT_EQ(read.exits[0].at, report.exits[0].at);
  EXPECT_EQ(read.exits[0].host_clock, report.exits[0].host_clock);
  EXPECT_EQ(to_text(read), to_text(report));
}

TEST(Messages, AnOrderIsReadBackAsItWas) {
  const Order order{.kind = Order::Kind::start,
                    .round = 3,
                    .hosts = {"a", "b"},
                    .num_hosts = 2,
                    .run_folder = "job",
                    .plan = plan(Inventory{.source = "test", .hosts = {gpu_host(1, 2)}}, {}),
                    .in_place = true,
                    .pause = std::chrono::milliseconds(2'000),
                    .restart_count = 1,
                    .failures = {{"a", 2}},
                    .set_aside = {"c"},
                    .master_addr = "10.0.0.1",
                    .master_port = 12,
                    .store = "tcp://10.0.0.1:1",
                    .reason = "r",
                    .exit_code = 9};
  const StoredPlan stored{.place = "p", .buckets = 3, .digest = "d", .pieces = {{"1", 2}}};
  const Order read = order_from_text(to_text(order, stored));
  EXPECT_EQ(read.plan, part_without_ranks(order.plan)) << "the ranks lie elsewhere";
  EXPECT_EQ(read.num_hosts, 2);
  EXPECT_EQ(read.stored.place, "p");
  EXPECT_EQ(read.stored.buckets, 3);
  EXPECT_EQ(read.stored.digest, "d");
  EXPECT_EQ(read.stored.pieces, stored.pieces);
  EXPECT_EQ(read.failures, order.failures);
  EXPECT_EQ(read.set_aside, order.set_aside);
  EXPECT_TRUE(read.in_place);
  EXPECT_EQ(read.pause, order.pause);
  EXPECT_EQ(to_text(read), to_text(order, stored));
}

TEST(Messages, AnOrderToOneHostNamesIt) {
  const Order order{.kind = Order::Kind::refuse, .hosts = {"a"}, .reason = "r"};
  EXPECT_EQ(order_from_text(to_text(order)).hosts, order.hosts);
}

TEST(Messages, WhatIsNoneIsAnError) {
  for (const char* text : {"", "{", "[]", "{}", R"({"kind": "dance"})", R"({"kind": 3})"}) {
    EXPECT_THROW(report_from_text(text), Error) << text;
    EXPECT_THROW(order_from_text(text), Error) << text;
  }
}

// It would overflow the stack of who copies it.
TEST(Messages, WhatNestsTooDeepIsAnError) {
  const std::string deep = cat(std::string(1'000'000, '['), std::string(1'000'000, ']'));
  EXPECT_THROW(report_from_text(cat("{\"kind\": \"join\", \"facts\": ", deep, "}")), Error);
  EXPECT_THROW(order_from_text(cat("{\"kind\": \"start\", \"plan\": ", deep, "}")), Error);
  EXPECT_THROW(agent_spec_from(cat(std::string(64, 'a'), " {\"schema\": ", deep, "}")), Error);
}

}  // namespace
}  // namespace muster
