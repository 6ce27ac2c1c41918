// Tells ranks apart that gather or reduce units of one shape in different orders: the values would
// be mixed. A call that comes after the same ones as before has its unit's number (CallNumber),
// which costs nothing once it was compared. Any other has the number of all calls until now, which
// the ranks compare: at once, or soon where there are many such calls.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "muster/parallel/sharded/comparison_budget.h"

namespace muster {

class CallOrder {
 public:
  // The number of the next call, which is of this unit. Equal on ranks whose calls were of the same
  // units until now.
  int64_t number_of(int64_t unit);

 private:
  using Units = std::array<int64_t, 2>;

  bool is_expected(int64_t unit);

  Units last_{-1, -1};             // the units of the last two calls
  std::map<Units, int64_t> next_;  // and the one that came after them
  uint64_t history_ = 0;           // a hash of all calls
  bool has_surprised_ = false;     // since the last comparison
  ComparisonBudget budget_;
};

}  // namespace muster
