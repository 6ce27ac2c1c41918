// A terminal's line is drawn over itself: it ends with a carriage return, and only the last one
// with a line feed.
#include "muster/run/progress.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

constexpr int kBarWidth = 20;
constexpr milliseconds kRedraw{100};

}  // namespace

Progress::Progress(std::string label, int64_t total_samples, bool shown)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total_samples, 1)),
      shown_(shown),
      alive_(::isatty(STDERR_FILENO) != 0 || get_env("MUSTER_TTY") == "1") {}

// The mean is over samples, so that a smaller last batch counts less.
void Progress::update(int64_t samples, double loss) {
  done_ += samples;
  loss_sum_ += loss * static_cast<double>(samples);
  loss_read_ = loss_sum_ / static_cast<double>(done_);
  draw();
}

void Progress::update(int64_t samples, const at::Tensor& loss) {
  if (loss.is_cpu())
    return update(samples, loss.item<double>());
  const NoGradGuard no_grad;
  done_ += samples;
  if (!sum_on_gpu_.defined())
    sum_on_gpu_ = at::zeros({}, loss.options().dtype(kDouble));
  sum_on_gpu_.add_(loss.detach().reshape({}), samples);
  read_losses_on_gpu();
  draw();
}

// One reading at a time is under way, and only where somebody sees the line.
void Progress::read_losses_on_gpu() {
  if (!shown_ || !alive_)
    return;
  if (const auto sum = reading_.take_if_ready())
    loss_read_ = (loss_sum_ + sum->at(0)) / static_cast<double>(read_at_);
  if (reading_.is_under_way())
    return;
  read_at_ = done_;
  reading_.start(sum_on_gpu_.to(kFloat).reshape({1}));
}

void Progress::draw() {
  if (!shown_ || !alive_ || Clock::now() - drawn_ < kRedraw)
    return;
  drawn_ = Clock::now();
  std::fprintf(stderr, "%s\r", line(loss_read_).c_str());
  std::fflush(stderr);
}

void Progress::finish() {
  if (shown_)
    std::fprintf(stderr, "%s\n", line(mean_loss()).c_str());
}

double Progress::mean_loss() const {
  const double on_gpu = sum_on_gpu_.defined() ? sum_on_gpu_.item<double>() : 0;
  return done_ == 0 ? 0 : (loss_sum_ + on_gpu) / static_cast<double>(done_);
}

double Progress::samples_per_second() const {
  return static_cast<double>(done_) / std::max(seconds_since(start_), 1e-9);
}

std::string Progress::line(double loss) const {
  const int64_t done = std::min(done_, total_);
  const size_t filled = kBarWidth * done / total_;
  char numbers[96];
  std::snprintf(numbers,
                sizeof(numbers),
                "%ld/%ld  loss %.4f  %.0f samples/s",
                done,
                total_,
                loss,
                samples_per_second());
  const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
  return cat(label_, " [", bar, "] ", numbers);
}

}  // namespace muster
