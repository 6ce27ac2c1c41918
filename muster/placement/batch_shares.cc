// Every rank gets its exact share rounded down; the samples that are left go to the ranks that lost
// most by it. Sums are made in long double, since the shares of a large batch differ in their last
// digits.
#include "muster/placement/batch_shares.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// Gives one sample to each rank that has none, from whichever rank has most then; of equals the
// last.
void raise_to_one(Int64s& shares) {
  std::priority_queue<std::pair<int64_t, size_t>> largest;
  for (const size_t i : indices_of(shares)) {
    if (shares[i] > 1)
      largest.emplace(shares[i], i);
  }
  for (int64_t& share : shares) {
    if (share > 0)
      continue;
    const auto [most, rank] = largest.top();
    largest.pop();
    share = 1;
    shares[rank] = most - 1;
    if (most > 2)
      largest.emplace(most - 1, rank);
  }
}

}  // namespace

// Of equal remainders the first rank's comes first, so the result is the same everywhere.
Int64s batch_shares(int64_t global_batch, const Doubles& weights) {
  if (global_batch < std::ssize(weights)) {
    throw invalid_argument("--global-batch: expected at least one sample for each of ",
                           weights.size(),
                           " ranks, got ",
                           global_batch,
                           "; give a larger batch or fewer ranks");
  }
  long double sum = 0;
  for (const double weight : weights)
    sum += weight;
  Int64s shares;
  std::vector<long double> remainders;
  int64_t left = global_batch;
  for (const double weight : weights) {
    const long double exact = static_cast<long double>(global_batch) * weight / sum;
    // Rounding may not give away more than there is.
    const int64_t whole = std::min(static_cast<int64_t>(std::floor(exact)), left);
    shares.push_back(whole);
    remainders.push_back(exact - static_cast<long double>(whole));
    left -= whole;
  }
  Indices order = numbers_below(weights.size());
  std::ranges::stable_sort(order, std::greater(), [&](size_t rank) { return remainders[rank]; });
  // Fewer are left than there are ranks but for rounding, so going round again is a precaution.
  for (size_t i = 0; left > 0; ++i, --left)
    ++shares[order[i % order.size()]];
  raise_to_one(shares);
  return shares;
}

}  // namespace muster
