// Prints timelines for timeline_test.py to look at in a browser.
//
//   timeline_example NUM_TASKS    that many on eight GPUs, whole, parts and pairs of them, and on
//                                 CPUs
#include <cstdio>
#include <cstdlib>
#include <random>

#include "muster/base/strings.h"
#include "muster/tasks/report/timeline.h"
#include "tests/placement/machines.h"

int main(int argc, char** argv) {
  const int num_tasks = argc > 1 ? std::atoi(argv[1]) : 5;
  std::mt19937 random(3);
  const auto upto = [&](unsigned most) {
    return static_cast<double>(random() % most);
  };
  muster::Inventory inventory = muster::machine({4, 4});
  for (muster::Host& host : inventory.hosts) {
    for (muster::Gpu& gpu : host.gpus)
      gpu.model = "NVIDIA A100-SXM4-80GB";
  }
  std::vector<muster::Task> tasks;
  std::vector<muster::TaskResult> results;
  std::vector<double> free_at(9, 0);
  for (int i = 0; i < num_tasks; ++i) {
    tasks.push_back({.name = i == 0 ? "<script>document.title = 'broken'</script>"
                                    : muster::cat("lr=0.1,seed=", i),
                     .parameters = {{"lr", "0.1"}, {"seed", muster::cat(i)}}});
    const auto device = static_cast<size_t>(i) % 9;
    muster::TaskAttempt attempt{.host = device < 4 ? "n0" : "n1",
                                .began = free_at[device] + upto(5) / 10};
    attempt.ended = attempt.began + 5 + upto(600) / 10;
    free_at[device] = *attempt.ended;
    if (device < 8)
      attempt.gpu_indices = {static_cast<int>(device) % 4};
    if (i % 10 == 1)
      attempt.exit_code = 3;
    if (i % 31 == 5)
      attempt.timed_out = true;
    if (device == 3)
      attempt.gpu_fraction = 0.5;
    tasks.back().argv = {"./train"};
    const bool failed = attempt.exit_code != 0 || attempt.timed_out;
    if (i + 9 >= num_tasks && i % 2 == 0)
      attempt.ended.reset();
    results.push_back({.state = !attempt.ended ? muster::TaskState::running
                                : failed       ? muster::TaskState::failed
                                               : muster::TaskState::done,
                       .attempts = {attempt}});
    if (device != 3 || i + 9 >= num_tasks)
      continue;  // a second half beside the first
    tasks.push_back({.name = muster::cat("half-", i), .argv = {"./train"}});
    attempt.exit_code = 0;
    attempt.timed_out = false;
    results.push_back({.state = muster::TaskState::done, .attempts = {attempt}});
  }
  const std::string page =
      muster::timeline_html(tasks, results, inventory, "sweep.toml in runs/sweep");
  std::fwrite(page.data(), 1, page.size(), stdout);
  return 0;
}
