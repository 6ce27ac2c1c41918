// Values that the program has put into parameters itself, by torch::load or by a write. Ranks that
// hold the same parameters, or train them together, must all have got the same ones. A hash of them
// is the number (CallNumber) of the ranks' next call, so that whoever compares calls compares it.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "muster/comm/process_group.h"
#include "muster/parallel/sharded/comparison_budget.h"

namespace muster {

class NewValues {
 public:
  // `subject` begins the errors.
  NewValues(const char* subject, ProcessGroup group)
      : subject_(subject), group_(std::move(group)) {}

  void add(int64_t hash);
  // Runs calls that the ranks make together. They have the hash as their number, or `number` where
  // there are no new values, or so often that this call is not one of those that are compared.
  // Throws: what they throw; invalid_argument, on every rank, for values that differ.
  void tell(int64_t number, const std::function<void()>& calls);

 private:
  const char* subject_;
  ProcessGroup group_;
  uint64_t hash_ = 0;  // 0: no new values
  ComparisonBudget budget_;
};

}  // namespace muster
