// Whether steps had gradients that are not finite, as the GPU finds it, for a host that does not
// wait. From the first such step on the GPU leaves out all steps, so that the parameters stay as
// they were before it, until the host has noticed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "muster/base/tensors.h"
#include "muster/train/late_read.h"

namespace muster {

class LateFindings {
 public:
  // Adds what a step has found: a float scalar on the GPU, 1 for gradients that are not finite.
  void add(const Tensor& found);

  // 1 if this step is to be left out, else 0: a float scalar on the GPU.
  const Tensor& leaves_out() const { return leaves_out_; }

  // Begins to read what is known at the end of a step, and the step's loss.
  void read(const Tensor& loss);

  struct News {
    double loss = 0;       // of the step that was read
    int64_t left_out = 0;  // steps up to that one
  };
  // The newest that the GPU has come to since the last call; nothing if it is still at it.
  std::optional<News> newest();

  // What was known kLag steps ago; nothing before. All ranks get it in the same step, whatever
  // their GPUs are at. Blocking: for the GPU, if it is kLag steps behind.
  std::optional<News> due();

  // How many steps were left out up to now. Blocking: for the GPU, if steps were added.
  int64_t wait();

  // The host knows all: nothing is left out from here on.
  void clear();

 private:
  static constexpr size_t kLag = 8;  // more steps than a GPU takes launches ahead for
  struct Reading {
    LateRead read;
    std::optional<News> news{};  // once the GPU has come to it
  };

  Tensor leaves_out_, num_left_out_;
  std::deque<Reading> readings_;  // of the last steps, the oldest first
  std::deque<LateRead> spare_;    // with memory to use again
};

}  // namespace muster
