// Each rank measures its own seconds a sample. At every `every`-th step the ranks exchange the time
// that their shares take, and all of them come to the same new shares (share_search.h).
#include "muster/train/rebalance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

constexpr auto kShares = "shares";

// The median leaves out the steps that something else has delayed.
double median_or_zero(Doubles values) {
  if (values.empty())
    return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Rebalance::Rebalance(ProcessGroup group, Int64s shares, const RebalanceOptions& options)
    : group_(std::move(group)), options_(options), search_(shares, options.at_least) {
  if (!std::isfinite(options.at_least)) {
    throw invalid_argument("batch shares: expected a fraction of the step as at_least, got ",
                           options.at_least,
                           " (rank ",
                           group_.job_rank(),
                           "); 0.05 is the default");
  }
  const bool all_have_some = all_of(shares, [](int64_t share) { return share >= 1; });
  if (!all_have_some || std::ssize(shares) != group_.size() || options_.every < 1) {
    throw invalid_argument(
        "batch shares: expected ",
        group_.size(),
        " shares of at least 1, one a rank, compared every 1 or more steps, got [",
        join(shares, ", "),
        "] every ",
        options_.every,
        " (rank ",
        group_.job_rank(),
        "); pass what the loaders begin with");
  }
}

// A loader that is added late gets the present shares at once.
void Rebalance::drive_by(Taker taker) {
  taker(shares());
  takers_.push_back(std::move(taker));
}

void Rebalance::give_shares() const {
  for (const Taker& taker : takers_)
    taker(shares());
}

SavedState Rebalance::state() const {
  SavedState state;
  state.tensors = {{kShares, at::tensor(shares(), kLong)}};
  return state;
}

// Shares of other ranks, or of another global batch, are no use here; the loaders keep theirs.
void Rebalance::load_state(const SavedState& state) {
  const Tensor saved = state.tensor("rebalance", kShares).contiguous();
  const auto* first = saved.const_data_ptr<int64_t>();
  const Int64s found(first, first + saved.numel());
  if (std::ssize(found) != group_.size() || sum_of(found) != sum_of(shares())) {
    if (group_.rank() == 0) {
      log_warning("batch shares: [",
                  join(found, ", "),
                  "] were saved for other ranks or another global batch; [",
                  join(shares(), ", "),
                  "] stay in use");
    }
    return;
  }
  search_ = ShareSearch(found, options_.at_least);
  steps_ = 0;
  seconds_a_sample_.clear();
  give_shares();
}

// A step without samples has no speed.
bool Rebalance::step(double seconds, int64_t samples) {
  if (samples > 0 && std::isfinite(seconds) && seconds > 0)
    seconds_a_sample_.push_back(seconds / as_number(samples));
  return ++steps_ % options_.every == 0 && compare();
}

// Every rank sees all times, so all come to the same shares without another exchange.
bool Rebalance::compare() {
  const double share = as_number(shares()[group_.rank()]);
  const Tensor mine = at::full({1}, median_or_zero(seconds_a_sample_) * share, kDouble);
  seconds_a_sample_.clear();
  const Tensor all = at::empty({group_.size()}, kDouble);
  group_.all_gather(all, mine);
  const auto* times = all.const_data_ptr<double>();
  if (!search_.observe({times, times + all.numel()}))
    return false;
  if (group_.rank() == 0)
    log_info("batch shares: after step ", steps_, " ", search_.reason());
  give_shares();
  return true;
}

}  // namespace muster
