// The batch size starts small and doubles. A larger batch keeps more of a device busy, until all of
// it is: from there on the speed stays what it is, and only the memory and the time of a step grow.
#include "muster/bench/training_speed.h"

#include <torch/torch.h>

#include <optional>

#include "muster/base/clock.h"

namespace muster {
namespace {

constexpr int64_t kWidth = 2048;
constexpr int64_t kClasses = 16;
constexpr int64_t kFirstBatch = 128;
constexpr int64_t kLastBatch = 65536;
constexpr double kLittleGain = 1.05;
constexpr double kLongStep = 0.5;  // seconds
constexpr int kLeastSteps = 3;

// Trains one model with batches of any size.
class Trainer {
 public:
  Trainer(Device device, ScalarType dtype)
      : model_(torch::nn::Linear(kWidth, kWidth),
               torch::nn::ReLU(),
               torch::nn::Linear(kWidth, kWidth),
               torch::nn::ReLU(),
               torch::nn::Linear(kWidth, kClasses)),
        options_(torch::TensorOptions().device(device).dtype(dtype)) {
    model_->to(device, dtype);
    optimizer_.emplace(model_->parameters(), torch::optim::SGDOptions(1e-4));
  }

  // Returns the seconds of a step: the mean of as many steps as fit into `seconds`. The steps
  // before the clock starts pay for allocations and for the choice of kernels.
  double step_seconds(int64_t batch, double seconds) {
    const auto inputs = torch::randn({batch, kWidth}, options_);
    const auto classes = torch::zeros({batch}, options_.dtype(kLong));
    for (int i = 0; i < kLeastSteps; ++i)
      step(inputs, classes);
    finish();
    const TimePoint start = Clock::now();
    int steps = 0;
    while (steps < kLeastSteps || seconds_since(start) < seconds) {
      step(inputs, classes);
      if (++steps % kLeastSteps == 0)
        finish();
    }
    finish();
    return seconds_since(start) / steps;
  }

 private:
  // The loss is kept, since reading it is how finish() waits.
  void step(const at::Tensor& inputs, const at::Tensor& classes) {
    optimizer_->zero_grad();
    last_loss_ = torch::cross_entropy_loss(model_->forward(inputs), classes);
    last_loss_.backward();
    optimizer_->step();
  }

  // A GPU computes beside this thread, and reading a result waits for it.
  void finish() const { last_loss_.item<float>(); }

  torch::nn::Sequential model_;
  torch::TensorOptions options_;
  std::optional<torch::optim::SGD> optimizer_;
  at::Tensor last_loss_;
};

}  // namespace

// A batch that the memory cannot hold ends the search, unless it is the first.
TrainingSpeed training_speed(Device device, const TrainingSpeedOptions& options) {
  torch::manual_seed(0);
  Trainer trainer(device, options.dtype);
  TrainingSpeed best;
  for (int64_t batch = kFirstBatch; batch <= kLastBatch; batch *= 2) {
    double seconds = 0;
    try {
      seconds = trainer.step_seconds(batch, options.seconds);
    } catch (const c10::OutOfMemoryError&) {
      if (best.batch_size == 0)
        throw;
      return best;
    }
    const double speed = static_cast<double>(batch) / seconds;
    const bool gains = speed > kLittleGain * best.samples_per_second;
    if (speed > best.samples_per_second)
      best = {speed, batch};
    if (!gains || seconds > kLongStep)
      return best;
  }
  return best;
}

}  // namespace muster
