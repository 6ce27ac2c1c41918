#include "muster/train/rebalance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kShares = "shares";
constexpr const char* kMeasured = "measured";
constexpr const char* kSteps = "steps";

int64_t sum_of(const std::vector<int64_t>& shares) {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

double longest(const std::vector<int64_t>& shares, const std::vector<double>& seconds_a_sample) {
  double seconds = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank)
    seconds = std::max(seconds, static_cast<double>(shares[rank]) * seconds_a_sample[rank]);
  return seconds;
}

double median_or_zero(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<int64_t> shares_by_speed(const std::vector<double>& seconds_a_sample, int64_t sum) {
  const bool right = std::all_of(seconds_a_sample.begin(), seconds_a_sample.end(),
                                 [](double seconds) { return std::isfinite(seconds) && seconds > 0; });
  if (!right || seconds_a_sample.empty() || sum < std::ssize(seconds_a_sample)) {
    throw Error(ErrorCode::invalid_argument,
                cat("batch shares: expected a sample or more for each rank, and times above 0, got ", sum,
                    " samples and [", join(seconds_a_sample, ", "), "]"));
  }
  double speed_of_all = 0;
  for (const double seconds : seconds_a_sample) speed_of_all += 1 / seconds;
  // Whole parts first; each sample that is left to the rank that would be ready with it first.
  std::vector<int64_t> shares;
  for (const double seconds : seconds_a_sample) {
    const double part = static_cast<double>(sum - std::ssize(seconds_a_sample)) / (seconds * speed_of_all);
    shares.push_back(1 + static_cast<int64_t>(part));
  }
  using Ready = std::pair<double, size_t>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> next;
  const auto with_one_more = [&](size_t rank) {
    return Ready(static_cast<double>(shares[rank] + 1) * seconds_a_sample[rank], rank);
  };
  for (size_t rank = 0; rank < shares.size(); ++rank) next.push(with_one_more(rank));
  for (int64_t left = sum - sum_of(shares); left > 0; --left) {
    const size_t rank = next.top().second;
    next.pop();
    ++shares[rank];
    next.push(with_one_more(rank));
  }
  return shares;
}

Rebalance::Rebalance(ProcessGroup group, std::vector<int64_t> shares, const RebalanceOptions& options)
    : group_(std::move(group)), shares_(std::move(shares)), options_(options) {
  const bool right = std::all_of(shares_.begin(), shares_.end(), [](int64_t share) { return share >= 1; });
  if (!right || std::ssize(shares_) != group_.size() || options_.every < 1) {
    throw Error(ErrorCode::invalid_argument, cat("batch shares: expected ", group_.size(),
                                                 " shares of at least 1, one a rank, compared every 1 or "
                                                 "more steps, got [",
                                                 join(shares_, ", "), "] every ", options_.every, " (rank ",
                                                 group_.rank(), "); pass what the loaders begin with"));
  }
}

void Rebalance::drive_by(Taker taker) {
  taker(shares_);
  takers_.push_back(std::move(taker));
}

void Rebalance::give_shares() const {
  for (const Taker& taker : takers_) taker(shares_);
}

SavedState Rebalance::state() {
  // As long on every rank: a step that was not measured has 0.
  at::Tensor mine = at::zeros({steps_ % options_.every}, at::kDouble);
  std::copy(seconds_a_sample_.begin(), seconds_a_sample_.end(), mine.mutable_data_ptr<double>());
  at::Tensor all = at::zeros({group_.size(), mine.numel()}, at::kDouble);
  if (mine.numel() > 0) group_.all_gather(all, mine);
  SavedState state;
  state.tensors = {{kShares, at::tensor(shares_, at::kLong)}, {kMeasured, all}};
  state.numbers = {{kSteps, static_cast<double>(steps_)}};
  return state;
}

void Rebalance::load_state(const SavedState& state) {
  const at::Tensor saved = state.tensor("rebalance", kShares).contiguous();
  const at::Tensor measured = state.tensor("rebalance", kMeasured).contiguous();
  const int64_t steps = state.whole_number("rebalance", kSteps);
  const auto* first = saved.const_data_ptr<int64_t>();
  const std::vector<int64_t> shares(first, first + saved.numel());
  if (std::ssize(shares) != group_.size() || sum_of(shares) != sum_of(shares_)) {
    if (group_.rank() == 0) {
      log(LogLevel::warn,
          cat("batch shares: [", join(shares, ", "), "] were saved, of other ranks or another ",
              "global batch: [", join(shares_, ", "), "] go on"));
    }
    return;
  }
  shares_ = shares;
  steps_ = steps;
  seconds_a_sample_.clear();
  const std::vector<int64_t> shape{group_.size(), steps_ % options_.every};
  if (measured.sizes() == at::IntArrayRef(shape)) {  // not with another `every`
    const auto* row = measured.const_data_ptr<double>() + group_.rank() * shape[1];
    std::copy_if(row, row + shape[1], std::back_inserter(seconds_a_sample_),
                 [](double seconds) { return seconds > 0; });
  }
  give_shares();
}

bool Rebalance::step(double seconds, int64_t samples) {
  if (samples > 0 && std::isfinite(seconds) && seconds > 0)
    seconds_a_sample_.push_back(seconds / static_cast<double>(samples));
  return ++steps_ % options_.every == 0 && compare();
}

bool Rebalance::compare() {
  at::Tensor mine = at::full({1}, median_or_zero(seconds_a_sample_), at::kDouble);
  seconds_a_sample_.clear();
  at::Tensor all = at::empty({group_.size()}, at::kDouble);
  group_.all_gather(all, mine);
  const auto* values = all.const_data_ptr<double>();
  const std::vector<double> times(values, values + all.numel());
  // A rank without a measurement in the window: nothing is known of how to divide.
  if (std::any_of(times.begin(), times.end(), [](double seconds) { return seconds <= 0; })) return false;
  const auto shares = shares_by_speed(times, sum_of(shares_));
  const double before = longest(shares_, times), after = longest(shares, times);
  if (shares == shares_ || after > (1 - options_.at_least) * before) return false;
  if (group_.rank() == 0) {
    log(LogLevel::info, cat("batch shares: [", join(shares_, ", "), "] become [", join(shares, ", "),
                            "] after step ", steps_, ": a step's computing should take ",
                            std::round(after * 1e4) / 10, " ms in place of ", std::round(before * 1e4) / 10));
  }
  shares_ = shares;
  give_shares();
  return true;
}

}  // namespace muster
