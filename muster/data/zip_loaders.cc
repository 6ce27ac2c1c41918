// The texts of zip_loaders.h.
#include "muster/data/zip_loaders.h"

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster::zipping {

void check_accumulate(const Int64s& of_loaders) {
  if (std::ranges::count(of_loaders, of_loaders.front()) == std::ssize(of_loaders))
    return;
  throw invalid_argument(
      "zip loaders: expected as many batches a step from each loader, got accumulate ",
      join(of_loaders, ", "),
      ": their steps would end at different times; give all loaders the same, and other "
      "batch sizes");
}

void check_distinct(const std::vector<const void*>& loaders) {
  for (const size_t i : indices_of(loaders)) {
    const auto again = std::find(loaders.begin(), loaders.begin() + i, loaders[i]);
    if (again != loaders.begin() + i)
      throw invalid_argument(
          "zip loaders: expected loaders of their own, got one as loader ",
          again - loaders.begin(),
          " and ",
          i,
          ": each step would take two of its batches; make a second loader over the same "
          "data, with another seed");
  }
}

void tell_of_epochs(const Int64s& batches) {
  const bool are_equal = std::ranges::count(batches, batches.front()) == std::ssize(batches);
  if (are_equal && batches.front() > 0)
    return;
  Strings texts = mapped(batches, [&](const int64_t of_epoch) {
    return of_epoch > 0 ? cat(of_epoch) : "an unknown number of";
  });
  log_info("zip loaders: an epoch is one of the first loader; the epochs of the loaders have ",
           join(texts, ", "),
           " batches, and the others go on where they are");
}

}  // namespace muster::zipping
