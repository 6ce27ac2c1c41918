// Sums, and not means, are added over the ranks, since ranks may have different numbers of samples.
#include "muster/train/evaluate.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/saved_state.h"

namespace muster {

void SampleMeans::add(const Tensor& values, int64_t samples) {
  if (values.dim() > 0 && values.numel() != samples) {
    throw invalid_argument("evaluate: expected a score with one value for each of ",
                           samples,
                           " samples, or their mean, got shape [",
                           sizes_text(values),
                           "]; take the mean over the other dimensions");
  }
  if (values.dim() == 0)
    return mean_.add(values, as_number(samples));
  mean_.add(values);
}

double SampleMeans::over(ProcessGroup& group) {
  mean_.reduce(group);
  return mean_.value();
}

}  // namespace muster
