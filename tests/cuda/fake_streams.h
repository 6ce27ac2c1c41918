// Streams of the fake GPUs. They tell of any two operations whether one has happened before the
// other, however fast a GPU is: every stream has a vector clock, which learns of another one's
// operations by an event, or through the host.
//
// The host has one clock for all of its threads: an operation that is launched after any thread has
// waited for a GPU happens after what was waited for. Threads tell each other of their waits by
// locks and variables, which nobody sees here, so that a clock for each of them would refuse right
// programs. A question that is answered by true is no wait: it counts for the thread alone that has
// asked. Threads that look on, as muster's GpuEnds, ask all the time, and what they see would hide
// what others have missed, in one run and not in the next. A program in which one thread asks until
// the answer is true and tells another, which does not wait, would be refused wrongly; muster has
// no such threads.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace muster::testing {

constexpr size_t kMaxGpus = 8;

// The operations of a stream are counted.
struct Moment {
  c10::Stream stream;
  uint64_t tick;
};

class VectorClock {
 public:
  bool knows(const Moment& moment) const;
  void learn(const Moment& moment);
  void join(const VectorClock& other);

 private:
  std::unordered_map<c10::Stream, uint64_t> ticks_;
};

// What is done elsewhere, and a stream waits for: an operation of a communicator.
class Flight {
 public:
  virtual ~Flight() = default;
  virtual bool is_over() = 0;
  virtual void wait() = 0;  // until it is over
};
using Flights = std::vector<std::shared_ptr<Flight>>;

// Of a CUDA graph that is captured, or was; 0: none.
using CaptureId = uint64_t;

// An operation that has been launched, and all that has happened before it, itself included.
struct Operation {
  const char* name;  // of static storage
  Moment at;
  VectorClock knows;
  CaptureId capture = 0;  // that it is part of
};

// What was on a stream when an event was recorded there.
struct Recorded {
  VectorClock clock;
  Flights flights;
  CaptureId capture = 0;  // that the event is part of: nobody may ask for it or wait for it outside
};

c10::Stream current_stream(c10::Device gpu);
c10::Stream exchange_stream(const c10::Stream& stream);  // this thread's; returns the one before
c10::Stream stream_of_pool(c10::Device gpu);             // as LibTorch has it: one of 32, in turn
c10::Stream new_stream(c10::Device gpu);                 // nobody else's

// Operations run in the thread that launches them, at once. Where their stream waits for a flight,
// that blocks the thread, which on a true GPU goes on: this is no wait of the host's.
Operation launch(const char* name, const c10::Stream& stream);
// On a communicator's own stream, behind what is on the current one. What is under way on its own
// is in order elsewhere.
Operation launch_behind(const char* name, const c10::Stream& own, const c10::Stream& current);
void add_flight(const c10::Stream& stream, const std::shared_ptr<Flight>& flight);

Recorded record(const c10::Stream& stream);
Recorded record_all_of(c10::Device gpu);
void block(const Recorded& recorded, const c10::Stream& stream);

// Captures what is launched on the stream, and on others that come to wait for it. As
// cudaStreamCaptureModeThreadLocal has it, the thread asks and waits for nothing meanwhile. Throws:
// Error of internal where one of these is not waited for in the end, or something was not to be
// captured.
CaptureId begin_capture(const c10::Stream& stream);
void end_capture(CaptureId capture, const c10::Stream& stream);
CaptureId capture_of(const c10::Stream& stream);
// Says so, and throws. The capture has failed.
[[noreturn]] void refuse_in_capture(CaptureId capture, const std::string& what);

bool is_over(const Recorded& recorded);  // this thread knows then
void let_host_wait(const Recorded& recorded);
void let_host_wait(const Operation& operation);  // which is over
void tell_host(const VectorClock& clock);        // it has waited elsewhere, which is not counted
void tell_thread(const VectorClock& clock);
bool host_knows(const Moment& moment);

}  // namespace muster::testing
