// A rank of a job that replaces failed ranks in place (`muster run --on-failure replace`). It
// listens for the next attempt, interrupts its waits when there is one, and meets the other ranks
// in it. For muster::run.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "muster/base/no_copy.h"
#include "muster/base/rank_env.h"
#include "muster/comm/init.h"
#include "muster/comm/init_after_rendezvous.h"
#include "muster/store/store.h"

namespace muster {

class InPlace : NoCopy {
 public:
  // Throws: invalid_argument for a rank whose launcher serves no store; unavailable.
  InPlace(RankEnv env, const InitOptions& init);
  ~InPlace();

  // Joins the newest attempt. Operations on the returned store end with peer_failed once there is a
  // newer one.
  Rendezvous meet();

  // This rank in the attempt last joined by meet(), whose number is env().attempt.
  const RankEnv& env() const { return env_; }

  // Called by a rank that has caught `error`. Returns true if there is a newer attempt to join;
  // it waits a few seconds for one if the error may come from a lost peer. Blocking: until then.
  bool goes_on_after(const std::exception_ptr& error);

 private:
  void listen();
  void come_to_newest();
  void link_activity_file() const;
  SharedStore open_rendezvous_store() const;
  void check_newest(int mine) const;

  RankEnv env_;
  InitOptions init_;
  const std::string process_;  // its name in the store: process_name()
  SharedStore store_;          // of this host's launcher

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int newest_;                    // attempt
  Environment variables_;         // of this rank in the newest attempt
  bool is_interrupting_ = false;  // the groups, for the attempt after newest_
  bool ends_ = false;
  std::thread listener_;
};

// Throws: invalid_argument for a group whose backend cannot be interrupted.
void require_interruptible(const ProcessGroup& group);

}  // namespace muster
