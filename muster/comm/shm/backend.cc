// Shared memory as a Carrier. Collectives go through the queue; messages go through a mailbox,
// which is made for the first one, since it costs a thread. The arena outlives the rest, because
// buffers that it gave out do.
#include "muster/comm/shm/backend.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/comm/host/backend.h"
#include "muster/comm/host/store_exchange.h"
#include "muster/comm/shm/queue.h"
#include "muster/shm/arena.h"
#include "muster/shm/mailbox.h"

namespace muster {

namespace {

constexpr std::chrono::minutes kRendezvous{2};  // the ranks have found each other already

class ShmCarrier : public Carrier {
 public:
  explicit ShmCarrier(std::unique_ptr<shm::Team> team)
      : team_(std::move(team)),
        arena_(team_->memory(),
               team_->layout().arena(team_->rank()),
               team_->layout().arena_bytes,
               &team_->line(team_->rank()).state),
        queue_(std::make_unique<ShmQueue>(*team_)) {}

  // Messages that are under way fail, and collectives are given up.
  ~ShmCarrier() override { ShmCarrier::leave(); }

  void submit(Call call) override { queue_->submit(std::move(call)); }
  bool run(const Request& request, milliseconds timeout) override {
    return queue_->run(request, timeout);
  }
  void send(int to, int tag, Part data, milliseconds timeout, Done done) override {
    mailbox().send(to, tag, data, timeout, of_message(std::move(done)));
  }
  void receive(int from, int tag, Part data, milliseconds timeout, Done done) override {
    mailbox().receive(from, tag, data, timeout, of_message(std::move(done)));
  }

  bool has_own_tags() const override { return true; }
  bool allocates() const override { return true; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override { return arena_.allocate(bytes); }

  void give_up() override { team_->give_up(); }
  // The mailbox goes first, then the queue: both use the team in threads of their own.
  void leave() override {
    std::unique_ptr<shm::Mailbox> mailbox;
    {
      const Lock lock(mailbox_mutex_);
      left_ = true;
      mailbox = std::move(mailbox_);
    }
    mailbox.reset();  // without the lock: what it calls last may ask for a mailbox
    queue_.reset();
    team_.reset();
  }

 private:
  // Wraps what the mailbox calls when a message is over.
  static shm::Mailbox::Done of_message(Done done) {
    return [done = std::move(done)](int source, std::exception_ptr error) {
      done({.source = source, .error = std::move(error)});
    };
  }

  shm::Mailbox& mailbox() {
    const Lock lock(mailbox_mutex_);
    if (left_)
      throw failed_precondition("send or recv: the process group was shut down");
    if (!mailbox_)
      mailbox_ = std::make_unique<shm::Mailbox>(*team_);
    return *mailbox_;
  }

  std::unique_ptr<shm::Team> team_;
  shm::Arena arena_;
  std::unique_ptr<ShmQueue> queue_;
  std::mutex mailbox_mutex_;
  std::unique_ptr<shm::Mailbox> mailbox_;
  bool left_ = false;
};

}  // namespace

BackendPtr make_shm(
    const StorePtr& store, int rank, int size, milliseconds timeout, RankNames names) {
  const auto patience = std::min<milliseconds>(timeout, kRendezvous);
  auto team = std::make_unique<shm::Team>(
      exchange_over(store, rank, patience), rank, size, patience, std::move(names));
  return make_host_backend(
      "muster", rank, size, timeout, std::make_unique<ShmCarrier>(std::move(team)));
}

}  // namespace muster
