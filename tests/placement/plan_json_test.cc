#include "muster/placement/plan_json.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/planner.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

Plan mixed_plan() {
  return muster::plan(machine({2, 1}), {.nproc_per_node = 2, .surplus = Surplus::cpu});
}

std::string plan_json_error(const std::string& text) {
  try {
    plan_from_json(text, "plan.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

// The mixed plan's JSON with one change.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = plan_to_json(mixed_plan());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanJson, Whole) {
  const Plan plan = muster::plan(machine({1}), {.nproc_per_node = 2, .surplus = Surplus::cpu});
  EXPECT_EQ(plan_to_json(plan), R"JSON({
  "schema": "muster.plan/1",
  "policy": "sequential",
  "visibility": "job",
  "simulated": false,
  "world_size": 2,
  "ranks": [
    {"rank":0,"local_rank":0,"host_index":0,"host":"n0","device":{"id":"GPU-00000000-0000-4000-8000-000000000000","kind":"cuda","uuid":"GPU-00000000-0000-4000-8000-000000000000","index":0,"model":"Test GPU","ordinal":0},"reason":"sequential: 1 of 1 GPU"},
    {"rank":1,"local_rank":1,"host_index":0,"host":"n0","device":{"id":"cpu:0","kind":"cpu","cpu_slot":0},"reason":"surplus: 1 GPU taken; CPU slot 0"}
  ],
  "notes": ["2 ranks asked for, 1 GPU: the other 1 on CPU slots (--surplus cpu)"]
}
)JSON");
}

TEST(PlanJson, RoundTrip) {
  EXPECT_EQ(plan_from_json(plan_to_json(mixed_plan()), "plan.json"), mixed_plan());
  Plan odd = mixed_plan();
  odd.simulated = true;
  odd.visibility = Visibility::own_first;
  odd.notes.emplace_back("quote \" backslash \\ newline \n");
  EXPECT_EQ(plan_from_json(plan_to_json(odd), "plan.json"), odd);
}

Plan full_plan() {
  Inventory inventory = machine({2});
  Host& host = inventory.hosts[0];
  for (int i = 0; i < 2; ++i) {
    host.cores.push_back({.cpus = {i, i + 2}, .numa_node = i, .socket = i, .l3 = i});
    host.gpus[static_cast<size_t>(i)].numa_node = i;
    host.gpus[static_cast<size_t>(i)].pci.value = cat("0000:0", i, ":00.0");
  }
  return muster::plan(inventory, {.global_batch = 5, .numa_binding = NumaBinding::node});
}

Plan part_of_mixed_plan() {
  Plan part = part_without_ranks(mixed_plan());
  part.ranks = {mixed_plan().ranks.back()};
  part.ranks.front().local_rank = 0;
  part.part->first_rank = part.ranks.front().rank;
  part.part->hosts_before = 1;
  part.part->batch_shares = {5, 5, 3, 3};
  part.part->batch_shares.resize(part.part->world_size, 2);
  part.part->digest = "d";
  return part;
}

TEST(PlanJson, APartIsReadBackAsItWas) {
  const Plan part = part_of_mixed_plan();
  EXPECT_EQ(plan_from_json(plan_to_json(part), "plan.json"), part);
  const Plan without = part_without_ranks(mixed_plan());
  EXPECT_EQ(plan_from_json(plan_to_json(without), "plan.json"), without);
}

TEST(PlanJson, ErrorsInAPart) {
  const std::string text = plan_to_json(part_of_mixed_plan());
  const auto with = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return plan_json_error(std::string(text).replace(at, from.size(), to));
  };
  const std::string size = cat(part_of_mixed_plan().part->world_size);
  EXPECT_THAT(with(cat("\"world_size\": ", size), "\"world_size\": 1"), HasSubstr("batch_shares"));
  EXPECT_THAT(with("\"first_rank\":", "\"first_rank\":1"), HasSubstr("rank"));
  EXPECT_THAT(with("\"5*2", "\"5*0"), HasSubstr("batch_shares"));
  EXPECT_THAT(with("\"5*2", "\"5"), HasSubstr("batch_shares"));
  EXPECT_THAT(with("\"5*2", "\"5*99999999999"), HasSubstr("batch_shares"));
  EXPECT_THAT(with("\"part\": {", "\"part\": {\"more\": 1, "), HasSubstr("an unknown member"));
}

TEST(PlanJson, RanksOfAHostAreReadBackAsTheyWere) {
  const Plan plan = mixed_plan();
  const RankRange range = ranks_on_host(plan, 1);
  HostRanks host{.host_index = 1, .first_rank = int_size(plan.ranks) - 2, .hosts_before = 1};
  host.ranks = {plan.ranks.end() - 2, plan.ranks.end()};
  ASSERT_EQ(range.count, 2U);
  const std::string text = host_ranks_to_json(host);
  EXPECT_THAT(text, Not(HasSubstr("\n"))) << "it stands in one line";
  const HostRanks read = host_ranks_from_json(text, "test");
  EXPECT_EQ(read.host_index, 1);
  EXPECT_EQ(read.first_rank, host.first_rank);
  EXPECT_EQ(read.hosts_before, 1);
  EXPECT_EQ(read.ranks, host.ranks);
  EXPECT_THROW(host_ranks_from_json("{}", "test"), Error);
}

TEST(PlanJson, WhatIsKnownBesides) {
  const std::string text = plan_to_json(full_plan());
  EXPECT_THAT(text, HasSubstr("\"global_batch\": 5,\n"));
  EXPECT_THAT(
      text,
      HasSubstr("\"pci\":\"0000:01:00.0\"},\"numa_node\":1,\"cpus\":\"1,3\",\"bind_cpus\":true,"
                "\"batch_share\":2,\"reason\""));
  EXPECT_EQ(plan_from_json(text, "plan.json"), full_plan());
}

TEST(PlanJson, ErrorsInWhatIsKnownBesides) {
  const auto error_with = [](const std::string& from, const std::string& to) {
    std::string text = plan_to_json(full_plan());
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return plan_json_error(text.replace(at, from.size(), to));
  };
  EXPECT_THAT(error_with("\"batch_share\":2", "\"batch_share\":3"),
              HasSubstr("at ranks[1].batch_share, got 3"));
  EXPECT_THAT(error_with("\"batch_share\":2", "\"batch_share\":1"),
              HasSubstr("sum of all shares at global_batch"));
  EXPECT_THAT(error_with("\"batch_share\":2,", ""), HasSubstr("shares of at least 1"));
  EXPECT_THAT(error_with("\"global_batch\": 5,", ""), HasSubstr("at ranks[0].batch_share, got 3"));
  EXPECT_THAT(error_with("\"cpus\":\"1,3\"", "\"cpus\":\"1-x\""),
              HasSubstr("at ranks[1].cpus, got '1-x'"));
  EXPECT_THAT(error_with("\"cpus\":\"1,3\",", ""), HasSubstr("at ranks[1].bind_cpus"));
  EXPECT_THAT(error_with("\"numa_node\":1", "\"numa_node\":-1"),
              HasSubstr("at ranks[1].numa_node, got -1"));
}

TEST(PlanJson, MoreDevicesAreOfTheKindOfTheFirst) {
  const auto error_with = [](DeviceAssignment more, bool on_cpu) {
    Plan plan = full_plan();
    if (on_cpu)
      plan.ranks[1].device = {};
    plan.ranks[1].more_devices = {std::move(more)};
    return plan_json_error(plan_to_json(plan));
  };
  DeviceAssignment gpu = full_plan().ranks[0].device;
  EXPECT_THAT(error_with({}, false), HasSubstr("at ranks[1].more_devices, got cpu:0 beside GPU-"));
  EXPECT_THAT(error_with(gpu, true), HasSubstr("at ranks[1].more_devices, got GPU-"));
  gpu.vendor = Vendor::amd;
  EXPECT_THAT(error_with(gpu, false),
              HasSubstr("expected GPUs of the vendor of `device` at ranks[1]"));
}

// As version 0.1.0 wrote it.
TEST(PlanJson, OlderFilesAreStillRead) {
  const Plan plan =
      plan_from_json(R"({"schema": "muster.plan/1", "policy": "sequential", "visibility": "job",
    "ranks": [{"rank":0,"local_rank":0,"host_index":0,"host":"a","device":{"id":"GPU-1","kind":"cuda","uuid":"GPU-1",
    "index":0,"model":"m","ordinal":0},"reason":"r"}]})",
                     "old.json");
  EXPECT_EQ(plan.global_batch, 0);
  EXPECT_EQ(plan.ranks[0].batch_share, 0);
  EXPECT_FALSE(plan.ranks[0].bind_cpus);
}

TEST(PlanJson, BytesThatAreNoUtf8DoNotSpoilIt) {
  Plan plan = mixed_plan();
  plan.ranks[0].reason = "\xff\xfe";
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").ranks[0].reason,
            "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(PlanJson, ErrorsNameTheMember) {
  const std::pair<std::string, const char*> cases[] = {
      {"nonsense", "plan plan.json: expected JSON"},
      {changed("muster.plan/1", "muster.plan/9"), "at schema"},
      {changed("\"policy\": \"sequential\",", ""), "at policy, got nothing"},
      {changed("\"job\"", "\"some\""), "at visibility, got 'some'"},
      {changed("\"simulated\": false", "\"simulated\": 0"),
       "expected true or false at simulated, got 0"},
      {changed("\"world_size\": 4", "\"world_size\": 5"),
       "expected 4, the number of its ranks, at world_size, got 5; correct it"},
      {changed("{\"rank\":1", "{\"rank\":2"),
       "expected an integer from 1 to 1 at ranks[1].rank, got 2"},
      {changed("\"local_rank\":1", "\"local_rank\":0"), "at ranks[1].local_rank, got 0"},
      {changed("\"host_index\":1", "\"host_index\":-1"), "at ranks[2].host_index"},
      {changed("\"host\":\"n0\"", "\"host\":\"n9\""), "at ranks[1].host, got 'n0'"},
      {changed("\"kind\":\"cuda\"", "\"kind\":\"tpu\""),
       "expected 'cpu' or 'cuda' at ranks[0].device.kind, got 'tpu'"},
      {changed("\"id\":\"GPU-0000", "\"id\":\"GPU-0001"), "at ranks[0].device.id"},
      {changed("\"ordinal\":0", "\"ordinal\":-1"), "at ranks[0].device.ordinal, got -1"},
      {changed("\"kind\":\"cpu\"", "\"kind\":\"cpu\",\"speed\":1"),
       "at ranks[3].device.speed, got an unknown member"},
      {changed("\"notes\": [", "\"notes\": [3,"), "expected a list of texts at notes"},
      {R"({"schema":"muster.plan/1","policy":"p","visibility":"job","ranks":[]})",
       "at least one rank"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_THAT(plan_json_error(text), HasSubstr(expected)) << text;
}

TEST(PlanJson, Warnings) {
  Plan plan = full_plan();
  EXPECT_THAT(plan_to_json(plan), Not(HasSubstr("warnings")));
  plan.notes = plan.warnings = {"left out GPU 1"};
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json"), plan);
}

}  // namespace
}  // namespace muster
