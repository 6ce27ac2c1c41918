// What can never run, on machines, selections and needs at random: held against the pool itself, in
// every state that the machine's GPUs can be in.
#include <gtest/gtest.h>

#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/tasks/schedule/check_needs.h"
#include "muster/tasks/schedule/device_pool.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

constexpr int kStates =
    4;  // of a GPU: with a process of others or not, with its memory used or not
constexpr int kMachines = 2000;

struct Case {
  Inventory inventory = {};
  Scores scores = {};
  std::string on = {};
  std::optional<std::string> gpus = {};
  TaskNeed need = {};
};

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}

  int upto(int last) { return std::uniform_int_distribution<int>(0, last)(random_); }

  std::string entry() {
    const int number = upto(2);
    const std::vector<std::string> entries = {cat(number),
                                              cat("!", number),
                                              "all",
                                              "idle",
                                              cat("free:", 1 + upto(1)),
                                              cat("fastest:", 1 + upto(1)),
                                              "free>=20GiB",
                                              "free<20GiB",
                                              "mem>=20GiB",
                                              "model=A100"};
    return entries[upto(static_cast<int>(entries.size()) - 1)];
  }

  std::string selection() {
    std::string text = entry();
    for (int more = upto(2); more > 0; --more)
      text += cat(",", entry());
    return text;
  }

  Case next() {
    Case made{.inventory = machine({1 + upto(2)})};
    for (Gpu& gpu : made.inventory.hosts[0].gpus) {
      gpu.model = upto(1) == 0 ? "NVIDIA A100" : "NVIDIA H100";
      gpu.memory_total_bytes = (upto(1) == 0 ? 16 : 40) * kGiB;
      made.scores[cat(gpu.index.value)] = 1 + upto(100);
    }
    if (upto(3) > 0)
      made.on = selection();
    if (upto(2) == 0)
      made.gpus = selection();
    const std::vector<std::string> models = {"", "A100", "H100"};
    made.need = {.gpus = static_cast<double>(1 + upto(1)),
                 .memory_bytes = upto(1) * 20 * kGiB,
                 .model = models[upto(2)]};
    return made;
  }

 private:
  std::mt19937 random_;
};

void set_state(Gpu& gpu, int state) {
  const bool is_used = state % 2 == 1;
  gpu.processes.clear();
  if (state / 2 == 1)
    gpu.processes = {{.pid = 1, .used_memory_bytes = 1}};
  gpu.memory_free_bytes = is_used ? gpu.memory_total_bytes / 4 : gpu.memory_total_bytes;
}

std::optional<Selection> selection_of(const Case& it) {
  return it.gpus ? std::optional<Selection>(*it.gpus) : std::nullopt;
}

bool could_run_now(const Case& it, const Inventory& inventory) {
  try {
    const DevicePool pool(inventory, {.gpus = selection_of(it), .scores = it.scores});
    return pool.could_meet(it.need, pool.allowed(it.on));
  } catch (const SelectionError&) {
    return false;
  }
}

bool could_ever_run(const Case& it) {
  Inventory inventory = it.inventory;
  std::vector<Gpu>& gpus = inventory.hosts[0].gpus;
  int num_states = 1;
  for (size_t i = 0; i < gpus.size(); ++i)
    num_states *= kStates;
  for (int number = 0; number < num_states; ++number) {
    int rest = number;
    for (Gpu& gpu : gpus) {
      set_state(gpu, rest % kStates);
      rest /= kStates;
    }
    if (could_run_now(it, inventory))
      return true;
  }
  return false;
}

bool is_possible(const Case& it) {
  const std::vector<Task> tasks = {
      {.name = "t", .argv = {"x"}, .needs = {it.need}, .on = it.on, .at = {2, 8}}};
  try {
    check_needs(tasks, {.inventory = it.inventory, .scores = it.scores, .gpus = selection_of(it)});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Two selections, or a GPU that is to be used and idle, may contradict each other. That is seen
// only when the pool is made.
bool may_contradict(const Case& it) {
  const bool are_two = !it.on.empty() && it.gpus;
  return are_two || cat(it.on, it.gpus.value_or("")).find("free<") != std::string::npos;
}

std::string text_of(const Case& it) {
  std::string text = cat("on = '", it.on, "', --gpus ", it.gpus.value_or("-"), ", needs ");
  text += cat(describe(it.need), "; GPUs:");
  for (const Gpu& gpu : it.inventory.hosts[0].gpus)
    text += cat(" ", gpu.model, " ", gpu.memory_total_bytes / kGiB);
  for (const auto& [name, score] : it.scores)
    text += cat(" score of ", name, " ", score);
  return text;
}

TEST(CheckNeeds, NothingIsImpossibleThatCouldRunOneDay) {
  Dice dice(20261128);
  int impossible = 0;
  for (int i = 0; i < kMachines; ++i) {
    const Case it = dice.next();
    const bool possible = is_possible(it);
    impossible += possible ? 0 : 1;
    const bool is_right = could_ever_run(it);
    EXPECT_TRUE(possible == is_right || (possible && may_contradict(it)))
        << possible << " is wrong: " << text_of(it);
  }
  EXPECT_GT(impossible, kMachines / 20) << "else it says nothing";
}

}  // namespace
}  // namespace muster
