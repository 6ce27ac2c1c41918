// A communicator of fake_nccl.h, without the operations: what is under way in it, and how that
// ends. The backend and the works that it has given out share it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/comm/nccl/plugin.h"
#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

// An operation of a communicator, which `work` does in shared memory. Without a work it is never
// over: shared memory has failed.
class Collective : public Flight {
 public:
  Collective(Operation operation,
             uint64_t sequence,
             c10::intrusive_ptr<c10d::Work> work,
             std::vector<Spoilable> written);

  // One that has failed in shared memory is not over: NCCL knows no such failure, and goes on
  // waiting.
  bool is_over() override;
  void wait() override;
  bool wait_until(const Deadline& deadline);  // false: it is not over
  void give_up();                             // after shared memory has been given up

  // It has taken too long, for whoever asks the work: the GPU itself goes on waiting.
  void fail(std::exception_ptr error);
  std::exception_ptr error();

  const Operation& operation() const { return operation_; }
  uint64_t sequence() const { return sequence_; }
  double seconds() const { return seconds_since(begin_); }
  int source();  // of a message, once it is over

 private:
  c10::intrusive_ptr<c10d::Work> work();

  const Operation operation_;
  const uint64_t sequence_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::vector<Spoilable> written_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Work> work_;  // until it is over
  bool over_ = false;
  std::exception_ptr error_;
  int source_ = -1;
};

class Communicator {
 public:
  using MakeOnHost = std::function<c10::intrusive_ptr<c10d::Backend>()>;

  explicit Communicator(const NcclGroup& group);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() { stop_watching(); }

  const c10::Stream& stream() const { return stream_; }
  std::mutex& order() { return order_; }  // is held while an operation is started
  void set_timeout(std::chrono::milliseconds timeout);

  // Waits until `all_have_come`, and gets what shared memory does. As with LibTorch, whose
  // getCommPtr() has a lock meanwhile, an abort waits for it: it ends nothing here. Throws:
  // DistBackendError where the communicator has ended.
  c10::intrusive_ptr<c10d::Backend> connect(const std::function<bool()>& all_have_come,
                                            const MakeOnHost& make_on_host);

  // Whether the GPU hangs in the operation that is started now: FAKE_NCCL_HANGS="1 all_reduce 3"
  // says on which rank, and from which such call of a communicator on. The caller holds order().
  bool hangs_in(const char* operation);

  // Throws: DistBackendError where the communicator has ended.
  void expect_alive(const char* operation);
  std::shared_ptr<Collective> add(const Operation& operation,
                                  c10::intrusive_ptr<c10d::Work> work,
                                  std::vector<Spoilable> written);

  // A graph in which it was captured has it. As NCCL's commDestroySync, the next two wait until
  // none is left.
  std::shared_ptr<void> for_graph() const { return graphs_; }
  void shutdown();
  void abort();
  void destroy();  // by the backend's destructor

 private:
  using Collectives = std::vector<std::shared_ptr<Collective>>;

  Collectives take_all();  // and lets no other begin
  void give_up_all();
  void wait_for_graphs() const;
  void watch();
  void stop_watching();
  void end_for_time(Collective& late) const;

  std::mutex connecting_;
  c10::intrusive_ptr<c10d::Backend> on_host_;  // once it has connected
  const int rank_;
  const std::string name_;
  const c10::Stream stream_;
  std::mutex order_;
  int64_t before_hang_ = 0;  // operations like the one that hangs
  const std::shared_ptr<int> graphs_ = std::make_shared<int>(0);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::milliseconds timeout_;
  Collectives under_way_;
  uint64_t sequence_ = 0;
  bool ended_ = false;
  bool stop_ = false;
  std::thread watchdog_;
};

}  // namespace muster::testing
