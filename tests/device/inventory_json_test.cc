#include "muster/device/inventory_json.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/read_inventory.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

Inventory two_hosts() {
  Gpu gpu;
  gpu.index = {0};
  gpu.uuid = {"GPU-11111111-aaaa-4bbb-8ccc-000000000001"};
  gpu.pci = {"0000:3b:00.0"};
  gpu.model = "Test \"80\" GB";
  gpu.memory_total_bytes = 85899345920;
  gpu.memory_free_bytes = 85000000000;
  gpu.utilization_percent = 3;
  gpu.temperature_celsius = 41;
  gpu.power_watts = 123.5;
  gpu.compute_capability = "9.0";
  gpu.numa_node = 1;
  gpu.processes = {{100, 2000}};
  gpu.vendor = Vendor::amd;
  gpu.power_limit_watts = 300;
  gpu.ecc_uncorrected_errors = 2;
  gpu.repair_pending = true;
  gpu.pcie_generation = 5;
  gpu.pcie_width = 8;
  gpu.near_cpus = "0-1,4-5";
  gpu.mig_enabled = true;
  gpu.mig = {{.uuid = {"MIG-1"}, .profile = "1g.10gb", .memory_total_bytes = 10}};
  Gpu lost;
  lost.index = {1};
  lost.health = "GPU is lost";
  Host a{.name = "a",
         .num_cores = 64,
         .cpu_slots = 4,
         .cores = {{.cpus = {0, 4}},
                   {.cpus = {1, 5}},
                   {.cpus = {2, 6}, .numa_node = 1, .socket = 1, .l3 = 1}},
         .gpus = {gpu, lost},
         .nics = {{.name = "mlx5_0", .pci = {"0000:3c:00.0"}, .numa_node = 1}, {.name = "mlx5_1"}},
         .gpu_links = {{{LinkKind::self, 0}, {LinkKind::xgmi, 4}},
                       {{LinkKind::xgmi, 4}, {LinkKind::self, 0}}},
         .nic_links = {{{LinkKind::pix, 0}, {}}, {{LinkKind::sys, 0}, {LinkKind::node, 0}}},
         .driver_version = "570.1",
         .gpu_note = {}};
  Host b{.name = "b",
         .num_cores = 2,
         .cpu_slots = 2,
         .gpus = {},
         .driver_version = {},
         .gpu_note = "no driver"};
  return {.source = "box.json", .simulated = true, .hosts = {a, b}};
}

std::string inventory_error_of(const std::string& text) {
  try {
    inventory_from_json(text, "box.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

std::string with_gpu(const std::string& members) {
  return cat(R"({"schema":"muster.devices/1","hosts":[{"name":"a","gpus":[{)", members, "}]}]}");
}

constexpr const char* kGoodGpu = R"("index":0,"uuid":"GPU-1","model":"A")";

TEST(InventoryJson, RoundTrip) {
  EXPECT_EQ(inventory_from_json(inventory_to_json(two_hosts()), "box.json"), two_hosts());
}

TEST(InventoryJson, RoundTripOfALiveMachineIsSimulated) {
  Inventory live = two_hosts();
  live.source = "this machine";
  live.simulated = false;
  EXPECT_EQ(inventory_from_json(inventory_to_json(live), "box.json"), two_hosts());
}

TEST(InventoryJson, FewMembersAreEnough) {
  const auto inventory =
      inventory_from_json(with_gpu(cat(kGoodGpu, R"(,"memory_total_bytes":100)")), "f");
  const Host& host = inventory.hosts.at(0);
  EXPECT_EQ(host.cpu_slots, 2);
  EXPECT_EQ(host.gpus.at(0).memory_free_bytes, 100) << "free when nothing else is said";
  EXPECT_EQ(host.gpus.at(0).health, kHealthy);
  EXPECT_TRUE(inventory.simulated);
  EXPECT_EQ(inventory.source, "f");
  const auto bare =
      inventory_from_json(R"({"schema":"muster.devices/1","hosts":[{"name":"a"}]})", "f");
  EXPECT_EQ(bare.hosts.at(0).gpu_note, "the inventory lists none");
}

TEST(InventoryJson, FromAFile) {
  const ScratchFolder folder;
  const std::string path = folder.write("box.json", inventory_to_json(two_hosts()));
  EXPECT_EQ(read_inventory(path).hosts, two_hosts().hosts);
  EXPECT_EQ(read_inventory(path).source, path);
  EXPECT_THROW(read_inventory(folder.path() + "/absent"), Error);
}

TEST(InventoryJson, ErrorsNameTheMember) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "inventory box.json: expected JSON"},
      {"[1", "expected JSON"},
      {"[]", "expected an object at the top, got a list"},
      {"{}", "expected a value at schema, got nothing"},
      {R"({"schema":"muster.devices/2","hosts":[]})",
       "expected 'muster.devices/1' at schema, got 'muster.devices/2'"},
      {R"({"schema":"muster.devices/1"})", "at hosts, got nothing"},
      {R"({"schema":"muster.devices/1","hosts":{}})", "expected a list at hosts, got an object"},
      {R"({"schema":"muster.devices/1","hosts":[]})", "at least one host"},
      {R"({"schema":"muster.devices/1","hosts":[3]})", "expected an object at hosts[0], got 3"},
      {R"({"schema":"muster.devices/1","hosts":[{"name":""}]})", "at hosts[0].name"},
      {R"({"schema":"muster.devices/1","hosts":[{"name":7}]})",
       "expected text at hosts[0].name, got 7"},
      {R"({"schema":"muster.devices/1","hosts":[{"name":"a","colour":1}]})",
       "at hosts[0].colour, got an unknown"},
      {R"({"schema":"muster.devices/1","hosts":[{"name":"a","\u001b[2J":1}]})",
       "at hosts[0].?[2J, got an unknown"},
      {R"({"schema":"muster.devices/1","hosts":[{"name":"a"},{"name":"a"}]})", "'a' twice"},
      {R"({"schema":"muster.devices/1","hosts":[{"name":"a","cpu_slots":0}]})",
       "at hosts[0].cpu_slots, got 0"},
      {R"({"schema":"muster.devices/1","schema":"muster.devices/1","hosts":[]})", "'schema' twice"},
      {with_gpu(R"("index":0,"model":"A")"), "at hosts[0].gpus[0].uuid, got ''"},
      {with_gpu(R"("index":-1,"uuid":"GPU-1","model":"A")"), "at hosts[0].gpus[0].index, got -1"},
      {with_gpu(R"("index":1.5,"uuid":"GPU-1","model":"A")"), "at hosts[0].gpus[0].index, got 1.5"},
      {with_gpu(R"("index":"0","uuid":"GPU-1","model":"A")"), "index, got \"0\""},
      {with_gpu(R"("index":18446744073709551615,"uuid":"GPU-1","model":"A")"),
       "index, got 18446744073709551615"},
      {with_gpu(cat(kGoodGpu, R"(,"memory_free_bytes":1)")), "at most memory_total_bytes, 0"},
      {with_gpu(cat(kGoodGpu, R"(,"power_watts":"hot")")), "expected a number"},
      {with_gpu(cat(kGoodGpu, R"(,"processes":[{"pid":0}])")),
       "at hosts[0].gpus[0].processes[0].pid, got 0"},
      {with_gpu(cat(kGoodGpu, "},{", kGoodGpu)), "each index once at hosts[0].gpus, got 0 twice"},
      {with_gpu(cat(kGoodGpu, R"(},{"index":1,"uuid":"GPU-1","model":"A")")),
       "each UUID once at hosts[0].gpus, got GPU-1 twice"},
      {with_gpu(cat(kGoodGpu, R"(,"vendor":"x")")),
       "expected nvidia or amd at hosts[0].gpus[0].vendor, got 'x'"},
      {with_gpu(cat(kGoodGpu, R"(,"near_cpus":"5-1")")),
       "at hosts[0].gpus[0].near_cpus, got '5-1'"},
      {with_gpu(cat(kGoodGpu, R"(,"mig":[{"uuid":"GPU-2"}])")),
       "at hosts[0].gpus[0].mig[0].uuid, got 'GPU-2'"},
      {with_gpu(cat(kGoodGpu, R"(,"pcie_width":0)")), "at hosts[0].gpus[0].pcie_width, got 0"},
      {with_gpu(cat(kGoodGpu, R"(}],"gpu_links":["X NV1"],"nics":[{"name":"n")")),
       "expected 1 links in each row at hosts[0].gpu_links, got 2"},
      {with_gpu(cat(kGoodGpu, R"(}],"gpu_links":["X","X"],"nics":[{"name":"n")")),
       "expected 1 rows at hosts[0].gpu_links, got 2"},
      {with_gpu(cat(kGoodGpu, R"(}],"nic_links":["NEAR"],"nics":[{"name":"n")")),
       "at hosts[0].nic_links, got 'NEAR'"},
      {with_gpu(cat(kGoodGpu, R"(}],"cores":[{"cores":["x"])")),
       "CPUs as in 0-31,64-95 at hosts[0].cores[0]"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_THAT(inventory_error_of(text), HasSubstr(expected)) << text;
}

TEST(InventoryJson, NestingIsBounded) {
  EXPECT_THAT(inventory_error_of(std::string(100'000, '[')), HasSubstr("nested at most 64 levels"));
}

TEST(InventoryJson, SameMemberInDifferentObjectsIsFine) {
  EXPECT_EQ(inventory_error_of(with_gpu(
                R"("index":0,"uuid":"GPU-1","model":"A"},{"index":1,"uuid":"GPU-2","model":"A")")),
            "no error");
}

}  // namespace
}  // namespace muster
