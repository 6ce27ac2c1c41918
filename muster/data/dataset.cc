// A data set of two tensors: an example is a row of each. A batch gathers its rows by one call a
// tensor, so no example is made on its own. The constructor checks shapes and devices, so that
// get_batch() need not.
#include "muster/data/dataset.h"

#include <ATen/ops/index_select.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/batch_memory.h"

namespace muster {

namespace {

// The rows are gathered straight into page-locked memory where that is asked for, which saves a
// copy on the way to a GPU, or into memory that the loader's batches have had before.
Tensor rows_of(const Tensor& source, const Tensor& rows, bool pinned) {
  const bool is_placed = has_batch_memory_for(source) || (pinned && source.is_cpu());
  if (!is_placed)
    return source.index_select(0, rows.to(source.device()));
  auto shape = source.sizes().vec();
  shape[0] = rows.size(0);
  auto found = batch_tensor(source.options().pinned_memory(pinned)).resize_(shape);
  at::index_select_out(found, source, 0, rows);
  return found;
}

}  // namespace

TensorDataset::TensorDataset(Tensor features, Tensor labels)
    : features_(std::move(features)), labels_(std::move(labels)) {
  if (!features_.defined() || !labels_.defined() || features_.dim() < 1 || labels_.dim() < 1) {
    throw invalid_argument(
        "data set: expected features and labels with one row per sample, got an undefined "
        "tensor or a scalar; pass tensors of shape [N, ...]");
  }
  if (features_.size(0) != labels_.size(0)) {
    throw invalid_argument("data set: expected as many labels as features, got ",
                           features_.size(0),
                           " features and ",
                           labels_.size(0),
                           " labels; they must come from the same samples");
  }
  if (features_.device() != labels_.device()) {
    throw invalid_argument("data set: expected features and labels on one device, got ",
                           features_.device().str(),
                           " and ",
                           labels_.device().str(),
                           "; move both with .to(device)");
  }
}

void datasets::refuse_null_dataset() {
  throw invalid_argument(
      "data set: expected a data set, got a null pointer; make it with std::make_shared");
}

LabelledExample TensorDataset::get_batch(const Tensor& rows, bool pinned) const {
  return {.features = rows_of(features_, rows, pinned), .labels = rows_of(labels_, rows, pinned)};
}

}  // namespace muster
