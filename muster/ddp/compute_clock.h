// Measures what one rank computes for a step, without its waits for others. It runs from the moment
// when a forward may start until a backward's own gradients are there, and stands still in between.
#pragma once

#include <optional>

#include "muster/base/clock.h"
#include "muster/trace/span.h"

namespace muster {

class ComputeClock {
 public:
  void pause() {
    if (since_)
      seconds_ += seconds_since(*since_);
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
