#include "tests/report/run_folder_example.h"

#include <signal.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/run_recorder.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/planner.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/call_text.h"
#include "muster/trace/category.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

constexpr int kRanks = 8;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kOpened = 100 * kSecond;
constexpr int64_t kLasts = 240 * kSecond;

Inventory example_machine() {
  Inventory inventory = machine({4, 4});
  for (Host& host : inventory.hosts) {
    host.driver_version = "570.86.15";
    host.gpu_note.clear();
    for (Gpu& gpu : host.gpus) {
      gpu.model = "NVIDIA A100-SXM4-80GB";
      gpu.memory_total_bytes = 80 * kGiB;
      gpu.memory_free_bytes = 79 * kGiB;
      gpu.numa_node = gpu.index.value / 2;
    }
    host.gpu_links.assign(4, std::vector<Link>(4, {LinkKind::nvlink, 4}));
    for (size_t i = 0; i < 4; ++i)
      host.gpu_links[i][i] = {LinkKind::self, 0};
  }
  return inventory;
}

std::vector<RankExit> example_exits(double began, double seconds, bool good) {
  std::vector<RankExit> exits;
  for (int rank = 0; rank < kRanks; ++rank) {
    RankExit exit{.rank = rank,
                  .local_rank = rank % 4,
                  .host = cat("n", rank / 4),
                  .device = test_uuid(rank / 4, rank % 4)};
    exit.pid = 4000 + rank;
    exit.cause = "exit code 0";
    exit.after = std::chrono::milliseconds(std::llround(seconds * 1000));
    exit.at = std::chrono::system_clock::time_point(
        std::chrono::milliseconds(std::llround((began + seconds) * 1000)));
    if (!good && rank != 5) {
      exit.signal = exit.sent_signal = SIGTERM;
      exit.at += std::chrono::milliseconds(20 + rank);
    }
    exits.push_back(exit);
  }
  if (good)
    return exits;
  std::swap(exits[0], exits[5]);
  exits[0].exit_code = 1;
  exits[0].cause = "exit code 1";
  exits[0].message =
      cat("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB; see ", kMarkup);
  exits[0].stack = "#0 train(muster::Context&) at train.cc:88\n#1 main at train.cc:120\n";
  exits[0].last_lines = {cat("loading ", kMarkup), "RuntimeError: CUDA out of memory."};
  return exits;
}

RunRecord example_record(const ExampleFacts& facts) {
  RunRecord record{.machine = example_machine()};
  record.machine->simulated = false;
  LaunchRecord launch{.run_id = "4f2a-example",
                      .argv = {"./train", "--lr", "0.1", "--name", kMarkup},
                      .work_dir = "/home/user/digits",
                      .host = "n0",
                      .muster_version = "0.1.0",
                      .libtorch = "2.15.0",
                      .backend = "nccl",
                      .device_names = {"NVIDIA H100 80GB HBM3", kMarkup},
                      .pid = 3999,
                      .max_restarts = 2,
                      .began = facts.began,
                      .ended = facts.began + 330,
                      .exit_code = facts.fails ? 1 : 0,
                      .outcome = facts.fails ? "failed" : "done"};
  const double begins[] = {0.2, 30.5, 75};
  const double ends[] = {29.5, 74, 329.8};
  for (int i = 0; i < 3; ++i) {
    const double began = facts.began + begins[i];
    launch.attempts.push_back(
        {.attempt = i,
         .began = began,
         .ended = facts.began + ends[i],
         .exits = example_exits(began, ends[i] - begins[i], i == 2 && !facts.fails)});
  }
  record.launches.push_back(std::move(launch));
  return record;
}

std::string example_metrics(int num_steps) {
  std::mt19937 random(5);
  const auto noise = [&] {
    return static_cast<double>(random() % 1000) / 1000 - 0.5;
  };
  std::string text;
  for (int step = 1; step <= num_steps; ++step) {
    const double part = static_cast<double>(step) / num_steps;
    const double loss = 2.3 * std::exp(-6 * part) + 0.05 + 0.06 * noise();
    text += cat("{\"step\":",
                step,
                ",\"loss\":",
                step % 997 == 0 ? std::string("null") : cat(loss),
                ",\"samples_per_second\":",
                41'000 + 3000 * noise(),
                ",\"lr\":",
                0.1 * (1 - part) + 1e-4);
    if (step % 100 == 0)
      text += cat(",\"validation_loss\":",
                  loss * 1.15 + 0.02,
                  ",\"test_accuracy\":",
                  1 - 0.9 * std::exp(-5 * part),
                  ",\"",
                  kMarkup,
                  "\":",
                  step);
    text += "}\n";
    if (step == 10)
      text += "{\"step\":10,\"loss\":\n";
  }
  return text;
}

void put_span(
    ActivityThread& thread, uint32_t at, const char* name, Category category, int64_t begin) {
  put_text(thread.spans[at].name, name);
  thread.spans[at].begin_ns = begin;
  thread.spans[at].category = static_cast<uint32_t>(category);
}

void put_calls(ActivityLayout& file, int rank, bool fails) {
  const int64_t sizes[] = {512, 1024};
  const uint64_t num_calls = 3000;
  for (uint64_t number = num_calls - kActivityCalls + 1; number <= num_calls; ++number) {
    ActivityCall& call = file.ring[(number - 1) % kActivityCalls];
    call.head = call.tail = number;
    const auto back = static_cast<int64_t>(num_calls - number + 1);
    const int64_t late =
        rank == 6 ? 11'000'000 : (rank * 7 + static_cast<int64_t>(number) * 3) % 5 * 400'000;
    call.begin_ns = kOpened + kLasts - back * 25'000'000 + late;
    call.end_ns = kOpened + kLasts - back * 25'000'000 + 16'000'000;
    call.sequence = static_cast<int64_t>(number);
    call.bytes = 2 << 20;
    call.peer = -1;
    call.state = 1;
    put_text(call.group, "world");
    put_text(call.operation, number % 8 == 0 ? "all_gather" : "all_reduce");
    put_shape(call.what, sizeof(call.what), "f32", sizes, 2);
  }
  file.header.calls = num_calls;
  ActivityCall& last = file.ring[(num_calls - 1) % kActivityCalls];
  if (!fails)
    return;
  if (rank == 5) {
    last.head = last.tail = 0;
  } else {
    last.end_ns = 0;
    last.state = 0;
  }
}

std::string example_activity(int rank, double began, bool fails) {
  auto file = std::make_unique<ActivityLayout>();
  ActivityHeader& header = file->header;
  std::memcpy(header.magic, kActivityMagic, sizeof(header.magic));
  header.version = kActivityVersion;
  header.bytes = sizeof(ActivityLayout);
  header.rank = rank;
  header.world_size = kRanks;
  header.attempt = 2;
  header.main_thread = 77;
  header.pid = 4000 + rank;
  put_text(header.host, rank == 3 ? kMarkup : rank < 4 ? "n0" : "n1");
  put_text(header.device, cat("cuda:", rank % 4).c_str());
  header.unix_minus_monotonic_ns = std::llround((began + 80) * 1e9) - kOpened;
  header.opened_ns = kOpened;
  header.closed_ns = fails ? 0 : kOpened + kLasts;
  header.step = 5000;
  header.steps = 3000;
  header.step_ns = kOpened + kLasts;
  header.samples = 1'280'000;
  header.loss = 0.051;
  header.present = present_word(kOpened + kLasts, static_cast<uint32_t>(Category::other));
  const int64_t wait = rank == 6 ? 52 : 9 + rank;
  header.totals_ns[static_cast<size_t>(Category::data)] = wait * kSecond;
  header.totals_ns[static_cast<size_t>(Category::communication)] = (62 - wait) * kSecond;
  header.totals_ns[static_cast<size_t>(Category::checkpoint)] = (rank == 0 ? 14 : 6) * kSecond;
  header.totals_ns[static_cast<size_t>(Category::other)] = 4 * kSecond;
  header.totals_ns[static_cast<size_t>(Category::compute)] =
      (240 - 62 - (rank == 0 ? 14 : 6) - 4) * kSecond;
  put_calls(*file, rank, fails);
  if (fails) {
    ActivityThread& thread = file->threads[0];
    thread.head = thread.tail = 9;
    thread.owner = 77;
    thread.depth = 2;
    put_span(thread, 0, "step", Category::compute, kOpened + kLasts - kSecond);
    put_span(thread,
             1,
             rank == 5 ? kMarkup : "backward",
             Category::compute,
             kOpened + kLasts - kSecond / 2);
  }
  return {reinterpret_cast<const char*>(file.get()), sizeof(ActivityLayout)};
}

}  // namespace

void write_example_run(const std::string& folder, const ExampleFacts& facts) {
  std::filesystem::create_directories(folder + "/activity/2");
  const RunRecord record = example_record(facts);
  write_file(folder + "/run.json", run_record_to_json(record));
  write_file(folder + "/plan.json", plan_to_json(plan(example_machine(), {})));
  write_file(folder + "/metrics.jsonl", example_metrics(facts.num_steps));
  write_file(folder + "/metrics.jsonl.replaced", "{\"step\":1,\"replaced\":1}\n");
  for (int rank = 0; rank < kRanks; ++rank)
    write_file(cat(folder, "/activity/2/", rank), example_activity(rank, facts.began, facts.fails));
  if (!facts.fails)
    return;
  FailureContext context{
      .run_id = "4f2a-example", .run_dir = folder, .attempt = 2, .restarts = 2, .max_restarts = 2};
  context.time = "2023-11-14T22:18:49+0000";
  write_file(folder + "/failure.json", failure_json(record.launches[0].attempts[2].exits, context));
}

}  // namespace muster
