// A try goes through these steps, one look at a time: a command is started; its server tells what
// it has, which must be what the run had there; the run begins on it; it is ready, and takes the
// lost connection's place. What fails on the way is abandoned, and the next try comes after a
// longer pause.
#include "muster/tasks/hosts/retry.h"

#include <algorithm>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

constexpr milliseconds kFirstRetryPause{1'000};
constexpr milliseconds kLongestRetryPause{60'000};
constexpr milliseconds kRetryAnswerWithin{60'000};

}  // namespace

HostRetry::HostRetry(const RemoteHost& lost, const PoolHost& had)
    : options_(lost.options()), pause_(kFirstRetryPause) {
  gpus_ = mapped(had.gpus, [](const PoolGpu& gpu) { return gpu.uuid.value; });
}

void HostRetry::begin() {
  if (Clock::now() - back_since_ > kLongestRetryPause)
    pause_ = kFirstRetryPause;
  trying_ = true;
  unfit_.clear();
  pause();
}

// The next pause is twice as long.
void HostRetry::pause() {
  next_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, kLongestRetryPause);
}

void HostRetry::stop() {
  trying_ = false;
  if (!connection_)
    return;
  connection_->abandon();
  over_.push_back(std::move(connection_));
}

HostRetry::Step HostRetry::step(EventLoop& loop) {
  std::erase_if(over_, [](const auto& host) { return host->wait_for_end(milliseconds(0)); });
  if (!trying_)
    return Step::nothing;
  if (connection_)
    return look();
  if (Clock::now() < next_)
    return Step::nothing;
  connect(loop);
  return Step::begun;
}

// Starts a try. That the command cannot be started is a failed try.
void HostRetry::connect(EventLoop& loop) {
  begun_ = false;
  give_up_ = Clock::now() + kRetryAnswerWithin;
  try {
    connection_ = std::make_unique<RemoteHost>(options_);
    connection_->listen(loop);
  } catch (const Error& error) {
    fail(false, error.message());
  }
}

// Tells how the try has gone on since the last look.
HostRetry::Step HostRetry::look() {
  if (const std::string& problem = connection_->problem(); !problem.empty())
    return fail(connection_->refusal() != RemoteHost::Refusal::none, problem);
  if (begun_)
    return connection_->ready() ? Step::ready : Step::nothing;
  if (!connection_->inventory()) {
    if (Clock::now() < give_up_)
      return Step::nothing;
    return fail(false, cat("no answer in ", format_duration(kRetryAnswerWithin)));
  }
  if (const auto missing = what_is_missing(); !missing.empty())
    return fail(true, missing);
  begun_ = true;
  return Step::answered;
}

// The try is over. A host that answered and cannot be used is told once for each reason.
HostRetry::Step HostRetry::fail(bool unfit, std::string why) {
  log_debug("host ", options_.hello.name, " is not back: ", why);
  if (connection_) {
    connection_->abandon();
    over_.push_back(std::move(connection_));
  }
  pause();
  if (!unfit || why == unfit_)
    return Step::nothing;
  unfit_ = std::move(why);
  return Step::unfit;
}

// Which GPU the run counts on and the host has not; empty: none.
std::string HostRetry::what_is_missing() const {
  const Host& host = connection_->inventory()->hosts[0];
  const auto there = mapped(usable_gpus(host).gpus,
                            [&](const UsableGpu& gpu) { return uuid_of(host, gpu).value; });
  const auto is_missing = [&](const std::string& gpu) {
    return !contains(there, gpu);
  };
  const auto missing = std::ranges::find_if(gpus_, is_missing);
  if (missing == gpus_.end())
    return {};
  const auto got = text_or(join(there, ", "), "none");
  return cat("expected GPU ", *missing, " there, as before, got ", got);
}

// The lost connection's command may still be dying: it is kept until it is gone.
std::unique_ptr<RemoteHost> HostRetry::exchange(std::unique_ptr<RemoteHost> lost) {
  over_.push_back(std::move(lost));
  trying_ = false;
  back_since_ = Clock::now();
  return std::move(connection_);
}

bool HostRetry::owns(pid_t pid) const {
  const auto is_its = [pid](const auto& host) {
    return host->pid() == pid;
  };
  return (connection_ && is_its(connection_)) || any_of(over_, is_its);
}

}  // namespace muster
