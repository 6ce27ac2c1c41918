#include "muster/train/same_rates.h"

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/optimizer_parameters.h"

namespace muster {

namespace {

// Rates are compared as text: ranks then differ exactly where the error shows a difference.
std::string rates_of(const Optimizers& optimizers) {
  const auto rates =
      concatenated(optimizers, [](Optimizer* optimizer) { return rates_of_groups(*optimizer); });
  return join(rates, ", ");
}

}  // namespace

void expect_same_rates(ProcessGroup& group,
                       const Optimizers& optimizers,
                       const std::string& place) {
  const Strings all = group.all_gather_bytes(rates_of(optimizers), "rates");
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0])
      continue;
    throw failed_precondition(
        "train step: expected the same learning rates on all ranks, got ",
        all[0],
        " on rank 0 and ",
        all[rank],
        " on rank ",
        rank,
        place,
        "; let schedules follow the step, or a value that all ranks have alike (mean_over_ranks)");
  }
}

}  // namespace muster
