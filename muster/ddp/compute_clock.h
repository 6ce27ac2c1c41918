// What one rank computes for a step, without its waits for others: it runs from the moment when a forward may
// begin to that when a backward's own gradients are there, and stands still between.
#pragma once

#include <optional>

#include "muster/base/clock.h"
#include "muster/trace/span.h"

namespace muster {

class ComputeClock {
 public:
  void pause() {
    if (since_) seconds_ += seconds_since(*since_);
    since_.reset();
    count_outside_as(Category::other);
  }
  void resume() {
    since_ = Clock::now();
    count_outside_as(Category::compute);
  }
  void end_step() {
    pause();
    last_ = seconds_;
    seconds_ = 0;
  }
  double last() const { return last_; }

 private:
  std::optional<Clock::time_point> since_;
  double seconds_ = 0;
  double last_ = 0;
};

}  // namespace muster
