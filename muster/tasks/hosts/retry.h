// A host that was lost is connected to again: when it is tried, whether what answers is what the
// run had, and when that can take the lost connection's place. For the run's hosts (run_hosts.h);
// nothing here waits.
#pragma once

#include <memory>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/tasks/hosts/remote_host.h"

namespace muster {

class HostRetry {
 public:
  // How a try has gone on since the last look.
  enum class Step {
    nothing,
    begun,     // a try
    answered,  // with all that the run had there: it is to begin on `connection`
    unfit,  // it answered, and cannot be used: `unfit` says why. Told once for each reason; it is
            // tried on
    ready,  // what the run began on: `exchange` has it take its place
  };

  // `lost`: how the host was reached. `had`: what the run has of it.
  HostRetry(const RemoteHost& lost, const PoolHost& had);

  // The host was lost: it is tried after a second, then after pauses that double up to a minute.
  // One that is lost soon after it was back is tried after the next pause, so that a task that
  // takes its host along does so once a minute at most.
  void begin();

  // It is not tried any more.
  void stop();
  bool trying() const { return trying_; }

  // To be called now and then. Begins a try when it is time, by `loop`, which must outlive this or
  // `stop`.
  Step step(EventLoop& loop);

  RemoteHost& connection() { return *connection_; }
  const std::string& unfit() const { return unfit_; }

  // The connection that is ready, for the one that was lost. It is not tried any more.
  std::unique_ptr<RemoteHost> exchange(std::unique_ptr<RemoteHost> lost);

  // Whether the process is one of its commands.
  bool owns(pid_t pid) const;

 private:
  void pause();
  void connect(EventLoop& loop);
  Step look();
  Step fail(bool unfit, std::string why);
  std::string what_is_missing() const;

  RemoteHostOptions options_;
  Strings gpus_;  // UUIDs
  bool trying_ = false;
  bool begun_ = false;
  TimePoint next_;
  TimePoint give_up_;  // on an answer
  TimePoint back_since_;
  milliseconds pause_;
  std::string unfit_;
  std::unique_ptr<RemoteHost> connection_;  // that is being made
  RemoteHosts over_;                        // killed: until they are gone
};

}  // namespace muster
