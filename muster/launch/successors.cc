// A failure that is to be made good takes this way: follow() asks Replacing, which answers with
// go_on(), now or later; go_on() announces the generation to the processes that run, and start()
// fills the slots that have none. Once a generation has held, forget_replaced() drops the processes
// before it.
#include "muster/launch/successors.h"

#include <algorithm>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"

namespace muster {

Successors::Successors(ProcessSet& processes,
                       RankStarts& starts,
                       Replacing& rules,
                       size_t num_slots,
                       SuccessorCallbacks callbacks)
    : processes_(processes),
      starts_(starts),
      rules_(rules),
      callbacks_(std::move(callbacks)),
      rejoin_(
          processes,
          starts,
          {.to_come = rules.patience, .to_save = rules.patience_with_saves},
          {.has_come =
               [this](int slot) { return rules_.has_come(starts_.process_in(slot), generation_); },
           .is_saving =
               [this](int slot) {
                 return rules_.is_saving && rules_.is_saving(starts_.process_in(slot));
               }}) {
  for (int slot = 0; std::cmp_less(slot, num_slots); ++slot)
    running_.insert(slot);
  rules_.go_on = [this](const NextGeneration& next) {
    go_on(next);
  };
}

Successors::~Successors() {
  rules_.go_on = {};
  processes_.loop().cancel(pause_);
}

// An awaited process that ends well without having come leaves the others waiting for it.
void Successors::on_exit(const ChildExit& exit) {
  const bool has_not_come = rejoin_.on_exit(exit.id);
  running_.erase(exit.id);
  ended_.insert(exit.pid);
  some_have_ended_ |= !exit.failed();
  if (has_not_come && !exit.failed())
    give_up(exit.id);
}

// The rank had done all its work when the others were told to come together again: they would wait
// for it. The failure that they were to make good is the job's then.
void Successors::give_up(int slot) {
  if (processes_.is_ending())
    return;
  const auto why = cat("rank ", starts_.rank_in(slot), " had ended already");
  log_warning("not replaced in place: ", why);
  for (const pid_t pid : std::exchange(replaced_, {}))
    followed_.erase(pid);
  processes_.end_all();
  if (rules_.on_given_up)
    rules_.on_given_up(why);
}

bool Successors::follow(const ChildExits& failed) {
  const auto are_new = filtered(failed, [&](const ChildExit& end) { return !have_followed(end); });
  RankFailures failures{
      .failed = mapped(are_new, [&](const ChildExit& end) { return starts_.explained(end); }),
      .left = {},
      .some_have_ended = some_have_ended_};
  if (failures.failed.empty())
    return true;  // a generation has begun since they ended
  for (const int slot : running_)
    failures.left.insert(starts_.rank_in(slot));
  callbacks_.explain(failures.failed);
  rejoin_.explain(failures.failed);
  for (const RankExit& failure : failures.failed)
    causes_[failure.pid] = failure.cause;
  asked_ = true;  // before go_on(), which may come within replace()
  const bool is_replaced = rules_.replace(failures);
  asked_ = asked_ && is_replaced;
  return is_replaced;
}

// Drops the processes of the generation before that others have followed: the generation after it
// has held, so none of their failures can be the job's. One whose slot is still empty is kept.
void Successors::forget_replaced() {
  std::erase_if(replaced_, [this](pid_t pid) {
    if (!starts_.has_follower(pid))
      return false;
    processes_.forget(pid);
    starts_.forget(pid);
    followed_.erase(pid);
    causes_.erase(pid);
    return true;
  });
}

// Ranks that are asked to stop while they are apart come together for it: what they keep in memory
// would be lost otherwise.
bool Successors::may_go_on() const {
  return !processes_.is_ending() || processes_.stops_as_asked();
}

// Every slot without a process gets one, for whatever reason it has none.
void Successors::go_on(const NextGeneration& next) {
  if (!may_go_on())
    return;
  processes_.loop().cancel(pause_);
  try {
    starts_.make_log_folder(next.specs);
  } catch (const Shortage& why) {
    const auto later = [this, next] {
      go_on(next);
    };
    pause_ = processes_.loop().call_at(shortage_.next_try(why), later);
    return;
  }
  shortage_.end();
  generation_ = next.number;
  asked_ = some_have_ended_ = false;
  forget_replaced();
  replaced_.merge(std::exchange(ended_, {}));
  followed_.insert(replaced_.begin(), replaced_.end());
  callbacks_.on_generation();
  specs_ = next.specs;
  to_start_.clear();
  started_.clear();
  for (int slot = 0; const RankSpec& spec : specs_) {
    if (running_.contains(slot)) {
      starts_.become(slot, spec);
      rules_.announce(starts_.process_in(slot), next, spec);
    } else {
      to_start_.insert(slot);
    }
    ++slot;
  }
  rejoin_.await(running_);
  if (next.pause.count() == 0 || processes_.is_ending())
    return start();
  if (!to_start_.empty())
    pause_ = processes_.loop().call_at(Clock::now() + next.pause, [this] { start(); });
}

// Those that find no process now are started later; the others wait for them.
void Successors::start() {
  processes_.loop().cancel(pause_);
  if (!may_go_on())
    return;
  try {
    while (!to_start_.empty())
      start_in(*to_start_.begin());
    shortage_.end();
  } catch (const Shortage& why) {
    pause_ = processes_.loop().call_at(shortage_.next_try(why), [this] { start(); });
  }
}

void Successors::start_in(int slot) {
  starts_.start(slot, specs_.at(slot));
  to_start_.erase(slot);
  running_.insert(slot);
  started_.insert(slot);
  callbacks_.on_start(slot);
}

// The causes are those that were found when the processes ended: later the kernel's counts have
// begun anew.
void Successors::explain(RankExits& exits) const {
  rejoin_.explain(exits);
  for (RankExit& exit : exits) {
    const std::string* const known = value_at(causes_, exit.pid);
    if (known != nullptr && !known->empty())
      exit.cause = *known;
  }
}

IntSet Successors::prepare_for_stop() {
  start();
  const bool others_run = rules_.others_run_elsewhere || !std::ranges::includes(started_, running_);
  return others_run ? started_ : IntSet();
}

}  // namespace muster
