// Whether steps had gradients that are not finite, as the GPU finds it, for a host that does not
// wait. From the first such step on the GPU leaves out all steps, so that the parameters stay as
// they were before it, until the host has noticed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "muster/train/late_read.h"

namespace muster {

class LateFindings {
 public:
  // Adds what a step has found: a float scalar on the GPU, 1 for gradients that are not finite.
  void add(const at::Tensor& found);

  // 1 if this step is to be left out, else 0: a float scalar on the GPU.
  const at::Tensor& leaves_out() const { return leaves_out_; }

  struct News {
    double loss = 0;       // of the step that was read
    int64_t left_out = 0;  // steps up to that one
  };
  // What the GPU has come to since; nothing if it is still at it.
  std::optional<News> news();

  // Begins to read what is known with a step's loss, unless an earlier reading is still under way.
  void read(const at::Tensor& loss);

  // How many steps were left out up to now. Blocking: for the GPU, if steps were added.
  int64_t wait();

  // The host knows all: nothing is left out from here on.
  void clear();

 private:
  at::Tensor leaves_out_, num_left_out_;
  LateRead reading_;
};

}  // namespace muster
