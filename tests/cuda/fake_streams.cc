#include "tests/cuda/fake_streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/cuda/fake_copies.h"

namespace muster::testing {

namespace {

constexpr c10::StreamId kPool = 32;
constexpr c10::StreamId kFirstOfNobody = 1000;  // behind those of the pool

thread_local std::array<c10::StreamId, kMaxGpus> current_streams{};
thread_local CaptureId captures = 0;  // this thread
thread_local VectorClock asked;       // what this thread knows from its questions

std::atomic<int64_t> waits = 0;

struct State {
  uint64_t tick = 0;
  VectorClock clock;
  Flights flights;
  CaptureId capture = 0;
};

struct All {
  std::mutex mutex;
  std::set<CaptureId> failed;  // captures
  std::unordered_map<c10::Stream, State> streams;
  VectorClock host;
};

All& all() {
  static auto* const all = new All;  // tensors and events may outlive everything
  return *all;
}

c10::StreamId& current_id(c10::Device gpu) {
  return current_streams.at(static_cast<size_t>(gpu.index()));
}

c10::Stream stream_with(c10::Device gpu, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, gpu, id);
}

void add(Flights& flights, const Flights& more) {
  std::erase_if(flights, [](const auto& flight) { return flight->is_over(); });
  for (const auto& flight : more) {
    if (std::ranges::find(flights, flight) == flights.end())
      flights.push_back(flight);
  }
}

[[noreturn]] void say_and_throw(const std::string& what) {
  const std::string text =
      cat("fake GPU: operation not permitted when stream is capturing: ", what);
  std::fprintf(stderr, "%s\n", text.c_str());
  throw Error(ErrorCode::internal, text);
}

void wait_for_all(const Flights& flights) {
  for (const auto& flight : flights)
    flight->wait();
}

}  // namespace

bool VectorClock::knows(const Moment& moment) const {
  const auto found = ticks_.find(moment.stream);
  return found != ticks_.end() && found->second >= moment.tick;
}

void VectorClock::learn(const Moment& moment) {
  uint64_t& tick = ticks_[moment.stream];
  tick = std::max(tick, moment.tick);
}

void VectorClock::join(const VectorClock& other) {
  for (const auto& [stream, tick] : other.ticks_)
    learn({stream, tick});
}

c10::Stream current_stream(c10::Device gpu) {
  return stream_with(gpu, current_id(gpu));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  return stream_with(stream.device(), std::exchange(current_id(stream.device()), stream.id()));
}

c10::Stream stream_of_pool(c10::Device gpu) {
  static std::atomic<c10::StreamId> made = 0;
  return stream_with(gpu, 1 + made++ % kPool);
}

c10::Stream new_stream(c10::Device gpu) {
  static std::atomic<c10::StreamId> made = kFirstOfNobody;
  return stream_with(gpu, made++);
}

namespace {

// The next operation of a stream. The caller has the lock.
Operation next(const char* name, const c10::Stream& stream) {
  State& state = all().streams[stream];
  const Moment now{stream, ++state.tick};
  state.clock.join(all().host);
  state.clock.join(asked);
  state.clock.learn(now);
  return {.name = name, .at = now, .knows = state.clock, .capture = state.capture};
}

// The caller has the lock. A stream that waits for a captured one is captured too.
void follow(CaptureId capture, State& state, const c10::Stream& stream) {
  if (capture == state.capture)
    return;
  const CaptureId either = capture != 0 ? capture : state.capture;
  const char* wrong = nullptr;
  if (capture == 0)
    wrong = "it waits for work of another stream that is not captured";
  else if (state.capture != 0)
    wrong = "it waits for work of another capture";
  else if (stream.id() == 0)
    wrong = "the default stream waits for it";
  if (wrong != nullptr) {
    all().failed.insert(either);
    say_and_throw(cat("a stream is captured, and ", wrong));
  }
  state.capture = capture;
}

// Whether the host may ask for the work of a stream, or wait for it.
void expect_no_capture(CaptureId capture, const char* doing) {
  if (capture != 0 || captures != 0)
    refuse_in_capture(capture != 0 ? capture : captures, doing);
}

}  // namespace

Operation launch(const char* name, const c10::Stream& stream) {
  wait_for_all(record(stream).flights);
  const std::lock_guard lock(all().mutex);
  return next(name, stream);
}

Operation launch_behind(const char* name, const c10::Stream& own, const c10::Stream& current) {
  const Recorded before = record(current);
  wait_for_all(before.flights);
  const std::lock_guard lock(all().mutex);
  State& state = all().streams[own];
  follow(before.capture, state, own);
  state.clock.join(before.clock);
  return next(name, own);
}

void add_flight(const c10::Stream& stream, const std::shared_ptr<Flight>& flight) {
  const std::lock_guard lock(all().mutex);
  add(all().streams[stream].flights, {flight});
}

Recorded record(const c10::Stream& stream) {
  const std::lock_guard lock(all().mutex);
  State& state = all().streams[stream];
  add(state.flights, {});
  return {.clock = state.clock, .flights = state.flights, .capture = state.capture};
}

CaptureId begin_capture(const c10::Stream& stream) {
  static std::atomic<CaptureId> made = 0;
  const CaptureId id = ++made;
  const std::lock_guard lock(all().mutex);
  State& state = all().streams[stream];
  if (stream.id() == 0 || state.capture != 0 || captures != 0)
    say_and_throw("a capture begins on the default stream, or within another");
  state.capture = captures = id;
  return id;
}

void end_capture(CaptureId capture, const c10::Stream& stream) {
  const std::lock_guard lock(all().mutex);
  captures = 0;
  bool joined = true;
  const VectorClock known = all().streams[stream].clock;
  for (auto& [other, state] : all().streams) {
    if (state.capture != capture)
      continue;
    state.capture = 0;
    joined = joined && known.knows({other, state.tick});
  }
  if (all().failed.contains(capture))
    say_and_throw("the capture has failed before");
  if (!joined)
    say_and_throw("it ends before the stream waits for all streams that are captured with it");
}

CaptureId capture_of(const c10::Stream& stream) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().streams.find(stream);
  return found == all().streams.end() ? 0 : found->second.capture;
}

void refuse_in_capture(CaptureId capture, const std::string& what) {
  {
    const std::lock_guard lock(all().mutex);
    all().failed.insert(capture);
  }
  say_and_throw(what);
}

Recorded record_all_of(c10::Device gpu) {
  Recorded recorded;
  const std::lock_guard lock(all().mutex);
  for (const auto& [stream, state] : all().streams) {
    if (stream.device() != gpu)
      continue;
    recorded.clock.join(state.clock);
    add(recorded.flights, state.flights);
    if (state.capture != 0)
      recorded.capture = state.capture;
  }
  return recorded;
}

void block(const Recorded& recorded, const c10::Stream& stream) {
  const std::lock_guard lock(all().mutex);
  State& state = all().streams[stream];
  follow(recorded.capture, state, stream);
  state.clock.join(recorded.clock);
  add(state.flights, recorded.flights);
}

bool is_over(const Recorded& recorded) {
  expect_no_capture(recorded.capture, "the host asks whether work is over");
  for (const auto& flight : recorded.flights) {
    if (!flight->is_over())
      return false;
  }
  tell_thread(recorded.clock);
  return true;
}

void let_host_wait(const Recorded& recorded) {
  expect_no_capture(recorded.capture, "the host waits for work");
  ++waits;
  wait_for_all(recorded.flights);
  tell_host(recorded.clock);
}

void let_host_wait(const Operation& operation) {
  expect_no_capture(operation.capture, cat("the host waits for ", operation.name).c_str());
  ++waits;
  tell_host(operation.knows);
}

void tell_host(const VectorClock& clock) {
  VectorClock known;
  {
    const std::lock_guard lock(all().mutex);
    all().host.join(clock);
    known = all().host;
  }
  make_late_copies(known, /*of_this_thread=*/false);
}

void tell_thread(const VectorClock& clock) {
  asked.join(clock);
  make_late_copies(asked, /*of_this_thread=*/true);
}

bool host_knows(const Moment& moment) {
  const std::lock_guard lock(all().mutex);
  return asked.knows(moment) || all().host.knows(moment);
}

}  // namespace muster::testing

// How often the host has waited for a GPU, as count_waits.cc counts on true ones.
extern "C" __attribute__((visibility("default"))) int64_t count_waits_so_far() {
  return muster::testing::waits;
}
