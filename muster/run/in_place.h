// A rank of a job that replaces failed ranks in place (`muster run --on-failure replace`): it listens for the
// next generation, leaves what it waits for when there is one, and meets the others again in it. For
// muster::run.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "muster/base/rank_env.h"
#include "muster/comm/init.h"
#include "muster/comm/init_after_rendezvous.h"
#include "muster/store/store.h"

namespace muster {

// "end", "continue" or "replace": MUSTER_ON_FAILURE. Throws: invalid_argument for another.
std::string what_on_failure();

class InPlace {
 public:
  // Throws: invalid_argument for a rank whose launcher serves no store; unavailable.
  InPlace(RankEnv env, const InitOptions& init);
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;
  ~InPlace();

  // Comes to the newest generation. What is done with the store ends with peer_failed when there is one after
  // it.
  Rendezvous meet();

  // This rank as it is in the generation that meet() came to last: of which the number is its attempt.
  const RankEnv& env() const { return env_; }

  // What a rank does that has caught `error`: true when there is a newer generation to come to, for which it
  // waits a few seconds where the error may be that of a lost peer. Blocking: until then.
  bool goes_on_after(const std::exception_ptr& error);

 private:
  void listen();
  void come();
  void show_activity_there() const;
  std::shared_ptr<Store> open_rendezvous_store() const;
  void check_newest(int mine) const;

  RankEnv env_;
  InitOptions init_;
  const std::string process_;     // process_name()
  std::shared_ptr<Store> store_;  // of this host's launcher

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int newest_;
  Environment variables_;         // of this rank in the newest
  bool is_interrupting_ = false;  // the groups, for the generation after newest_
  bool ends_ = false;
  std::thread listener_;
};

// A group of a backend that cannot be interrupted is refused. Throws: invalid_argument.
void require_interruptible(const ProcessGroup& group);

}  // namespace muster
