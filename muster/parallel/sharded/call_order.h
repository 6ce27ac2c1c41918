// Tells ranks apart that gather or reduce units of one shape in different orders: the values would
// be mixed. A call that comes after the same ones as before has its unit's number (CallNumber),
// which costs nothing once it was compared. Any other has a number of its own, which the ranks
// compare.
#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace muster {

class CallOrder {
 public:
  // The number of the next call, which is of this unit. Equal on ranks whose calls were of the same
  // units until now.
  int64_t number_of(int64_t unit);

 private:
  using Units = std::array<int64_t, 2>;

  Units last_{-1, -1};             // the units of the last two calls
  std::map<Units, int64_t> next_;  // and the one that came after them
  int64_t surprises_ = 0;
};

}  // namespace muster
