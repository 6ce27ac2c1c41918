// Both numbers stay on the GPU, in the same memory for a CUDA graph that adds to them, and each
// step's reading brings them to the host beside the loss.
#include "muster/train/late_findings.h"

#include <ATen/Functions.h>

#include <utility>
#include <vector>

#include "muster/base/torch_names.h"

namespace muster {

namespace {

LateFindings::News news_of(const std::vector<float>& numbers) {
  return {.loss = numbers.at(0), .left_out = static_cast<int64_t>(numbers.at(1))};
}

}  // namespace

void LateFindings::add(const Tensor& found) {
  if (!leaves_out_.defined()) {
    leaves_out_ = at::zeros_like(found);
    num_left_out_ = at::zeros_like(found);
  }
  at::maximum_out(leaves_out_, leaves_out_, found);
  num_left_out_.add_(leaves_out_);
}

void LateFindings::read(const Tensor& loss) {
  const Tensor number = loss.detach().reshape({}).to(kFloat);
  const Tensor none = num_left_out_.defined() ? num_left_out_ : at::zeros_like(number);
  if (spare_.empty())
    spare_.emplace_back();
  Reading& reading = readings_.emplace_back(Reading{.read = std::move(spare_.front())});
  spare_.pop_front();
  reading.read.start(at::stack({number, none}));
}

// The GPU comes to the steps one after the other.
std::optional<LateFindings::News> LateFindings::newest() {
  std::optional<News> found;
  for (Reading& reading : readings_) {
    if (reading.news)
      continue;
    const auto numbers = reading.read.take_if_ready();
    if (!numbers)
      break;
    reading.news = found = news_of(*numbers);
  }
  return found;
}

std::optional<LateFindings::News> LateFindings::due() {
  if (readings_.size() < kLag)
    return std::nullopt;
  Reading oldest = std::move(readings_.front());
  readings_.pop_front();
  if (!oldest.news)
    oldest.news = news_of(oldest.read.wait());
  spare_.push_back(std::move(oldest.read));
  return oldest.news;
}

int64_t LateFindings::wait() {
  return num_left_out_.defined() ? static_cast<int64_t>(num_left_out_.item<float>()) : 0;
}

void LateFindings::clear() {
  for (Reading& reading : readings_) {
    if (reading.read.is_under_way())
      reading.read.wait();
  }
  readings_.clear();
  if (!leaves_out_.defined())
    return;
  leaves_out_.zero_();
  num_left_out_.zero_();
}

}  // namespace muster
