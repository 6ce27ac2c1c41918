// Keeps comparisons of calls rare where a program gives cause for one again and again: each asks
// all ranks over the store. It counts alike on ranks whose calls are alike.
#pragma once

#include <algorithm>
#include <cstdint>

namespace muster {

class ComparisonBudget {
 public:
  // Before each call. Returns whether this one may be compared; `take` takes it from the budget.
  bool may_compare() {
    credit_ = std::min(credit_ + 1, kMost);
    return credit_ >= kPrice;
  }
  void take() { credit_ -= kPrice; }

 private:
  static constexpr int64_t kPrice = 64;  // calls
  static constexpr int64_t kMost = 100 * kPrice;

  int64_t credit_ = kMost;
};

}  // namespace muster
