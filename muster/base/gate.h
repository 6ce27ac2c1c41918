// Lets calls of any thread in until it is closed; who closes it waits for those inside. To pass
// costs two atomic additions.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace muster {

class Gate {
 public:
  // Whoever holds one is inside.
  class Pass {
   public:
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      if (gate_ != nullptr)
        gate_->leave();
    }
    explicit operator bool() const { return gate_ != nullptr; }  // false: the gate was closed

   private:
    Gate* gate_;
  };

  Pass enter() {
    if ((state_.fetch_add(1) & kClosed) == 0)
      return Pass(this);
    leave();
    return Pass(nullptr);
  }

  bool closed() const { return (state_.load() & kClosed) != 0; }

  // True for the first who closes it; `anybody_inside`, where given, is told whether somebody may
  // be.
  bool close(bool* anybody_inside = nullptr) {
    const uint32_t before = state_.fetch_or(kClosed);
    if (anybody_inside != nullptr)
      *anybody_inside = (before & ~kClosed) != 0;
    return (before & kClosed) == 0;
  }

  // Blocking: until all who were inside have left. Not from inside.
  void wait_until_empty() {
    for (uint32_t now = state_.load(); now != kClosed; now = state_.load())
      state_.wait(now);
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  void leave() {
    if (state_.fetch_sub(1) == (kClosed | 1))
      state_.notify_all();
  }

  std::atomic<uint32_t> state_{0};  // how many are inside, and kClosed
};

}  // namespace muster
