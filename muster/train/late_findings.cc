// Both numbers stay on the GPU, and a reading brings them to the host beside the loss.
#include "muster/train/late_findings.h"

#include <ATen/Functions.h>

namespace muster {

void LateFindings::add(const at::Tensor& found) {
  leaves_out_ = leaves_out_.defined() ? at::maximum(leaves_out_, found) : found;
  num_left_out_ = num_left_out_.defined() ? num_left_out_ + leaves_out_ : leaves_out_.clone();
}

std::optional<LateFindings::News> LateFindings::news() {
  const auto numbers = reading_.take_if_ready();
  if (!numbers)
    return std::nullopt;
  return News{.loss = numbers->at(0), .left_out = static_cast<int64_t>(numbers->at(1))};
}

void LateFindings::read(const at::Tensor& loss) {
  if (reading_.is_under_way())
    return;
  const at::Tensor number = loss.detach().reshape({}).to(at::kFloat);
  const at::Tensor none = num_left_out_.defined() ? num_left_out_ : at::zeros_like(number);
  reading_.start(at::stack({number, none}));
}

int64_t LateFindings::wait() {
  return num_left_out_.defined() ? static_cast<int64_t>(num_left_out_.item<float>()) : 0;
}

void LateFindings::clear() {
  if (reading_.is_under_way())
    reading_.wait();
  leaves_out_.reset();
  num_left_out_.reset();
}

}  // namespace muster
