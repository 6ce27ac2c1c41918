#include "muster/launch/successors.h"

#include <algorithm>
#include <utility>

namespace muster {

Successors::Successors(ProcessSet& processes, WorkerStarts& starts, Replacing& rules, size_t num_slots,
                       std::function<void(std::vector<WorkerExit>&)> explain,
                       std::function<void(int)> on_start)
    : processes_(processes),
      starts_(starts),
      rules_(rules),
      explain_(std::move(explain)),
      on_start_(std::move(on_start)),
      rejoin_(processes, starts, rules.patience,
              [this](int slot) { return rules_.has_come(starts_.process_in(slot), generation_); }) {
  for (size_t slot = 0; slot < num_slots; ++slot) running_.insert(static_cast<int>(slot));
  rules_.go_on = [this](const NextGeneration& next) { go_on(next); };
}

Successors::~Successors() {
  rules_.go_on = {};
  processes_.loop().cancel(pause_);
}

void Successors::on_exit(const ChildExit& exit) {
  rejoin_.on_exit(exit.id);
  running_.erase(exit.id);
  ended_.insert(exit.pid);
  some_have_ended_ = some_have_ended_ || !exit.failed();
}

bool Successors::follow(const std::vector<ChildExit>& failed) {
  RankFailures failures{.failed = {}, .left = {}, .some_have_ended = some_have_ended_};
  for (const ChildExit& end : failed)
    if (!have_followed(end)) failures.failed.push_back(starts_.explained(end));
  if (failures.failed.empty()) return true;  // a generation has begun since they ended
  for (const int slot : running_) failures.left.insert(starts_.rank_in(slot));
  explain_(failures.failed);
  rejoin_.explain(failures.failed);
  asked_ = true;
  if (rules_.replace(failures)) return true;
  asked_ = false;
  return false;
}

// Every slot without a process gets one, for whatever reason it has none.
void Successors::go_on(const NextGeneration& next) {
  if (processes_.is_ending()) return;
  processes_.loop().cancel(std::exchange(pause_, 0));
  generation_ = next.number;
  asked_ = some_have_ended_ = false;
  followed_.merge(ended_);
  ended_.clear();
  make_log_folder(next.specs);
  std::set<int> empty;
  for (int slot = 0; slot < std::ssize(next.specs); ++slot) {
    const WorkerSpec& spec = next.specs[static_cast<size_t>(slot)];
    if (!running_.contains(slot)) {
      empty.insert(slot);
      continue;
    }
    starts_.become(slot, spec);
    rules_.announce(starts_.process_in(slot), next, spec);
  }
  rejoin_.await(running_);
  if (next.pause.count() == 0) return start(next.specs, empty);
  if (empty.empty()) return;
  pause_ = processes_.loop().call_at(Clock::now() + next.pause, [this, specs = next.specs, empty] {
    pause_ = 0;
    start(specs, empty);
  });
}

void Successors::start(const std::vector<WorkerSpec>& specs, const std::set<int>& slots) {
  if (processes_.is_ending()) return;
  for (const int slot : slots) {
    starts_.start(slot, specs.at(static_cast<size_t>(slot)));
    running_.insert(slot);
    on_start_(slot);
  }
}

}  // namespace muster
