// Brings a few numbers of a GPU to the host without waiting for the GPU. One reading at a time is
// under way, so that a GPU that is far behind costs no memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

#include "muster/base/tensors.h"

namespace muster {

class LateRead {
 public:
  bool is_under_way() const { return done_.has_value(); }

  // Begins to read `values`, a float vector on a GPU. Expects that no reading is under way.
  void start(const Tensor& values);

  // The numbers once the GPU has come to them; nothing before, or if no reading is under way.
  std::optional<std::vector<float>> take_if_ready();

  // The numbers of the reading under way. Blocking: for the GPU.
  std::vector<float> wait();

 private:
  std::vector<float> take();

  Tensor on_host_;  // pinned, used again and again
  std::optional<c10::Event> done_;
};

}  // namespace muster
