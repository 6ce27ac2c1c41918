// How fast a device trains: samples a second of a small perceptron's whole step (forward, backward,
// SGD), at the batch size that suits the device best. What `muster bench device` calls a score.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "muster/base/torch_names.h"

namespace muster {

struct TrainingSpeed {
  double samples_per_second = 0;
  int64_t batch_size = 0;
};

struct TrainingSpeedOptions {
  ScalarType dtype = kFloat;
  double seconds = 0.5;  // of measuring, for each batch size
};

// Batch sizes are doubled until that gains little, one step takes long, or the device's memory is
// full. Blocking: a few seconds. Source: the step is torch::optim::SGD over torch::nn::Linear
// layers of 2048.
TrainingSpeed training_speed(Device device, const TrainingSpeedOptions& options = {});

}  // namespace muster
