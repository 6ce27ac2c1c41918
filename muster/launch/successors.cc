#include "muster/launch/successors.h"

namespace muster {

Successors::Successors(ProcessSet& processes, WorkerStarts& starts, const Replacing& rules,
                       std::function<void(std::vector<WorkerExit>&)> explain,
                       std::function<void(int)> on_start)
    : processes_(processes),
      starts_(starts),
      rules_(rules),
      explain_(std::move(explain)),
      on_start_(std::move(on_start)),
      rejoin_(processes, rules.patience, rules.has_come) {}

Successors::~Successors() {
  processes_.loop().cancel(pause_);
}

void Successors::on_exit(const ChildExit& exit) {
  rejoin_.on_exit(exit.id);
  some_have_ended_ = some_have_ended_ || !exit.failed();
}

bool Successors::follow(const std::vector<ChildExit>& failed, const std::set<int>& left) {
  RankFailures failures{
      .failed = {}, .to_start = waiting_, .left = left, .some_have_ended = some_have_ended_};
  for (const ChildExit& end : failed) {
    failures.failed.push_back(starts_.explained(end));
    failures.to_start.insert(end.id);
  }
  for (const int rank : failures.to_start) failures.left.erase(rank);
  explain_(failures.failed);
  rejoin_.explain(failures.failed);
  const auto next = rules_.replace(failures);
  if (!next) return false;
  for (const ChildExit& end : failed) followed_.insert(end.pid);
  make_log_folder(next->specs);
  rejoin_.await(failures.left);
  processes_.loop().cancel(pause_);
  if (next->pause.count() == 0) {
    start(next->specs);
    return true;
  }
  waiting_ = failures.to_start;
  pause_ =
      processes_.loop().call_at(Clock::now() + next->pause, [this, specs = next->specs] { start(specs); });
  return true;
}

void Successors::start(const std::vector<WorkerSpec>& specs) {
  waiting_.clear();
  if (processes_.is_ending()) return;
  for (const WorkerSpec& spec : specs) {
    starts_.start(spec);
    on_start_(spec.rank);
  }
}

}  // namespace muster
