// The record is of the process, and weak: it keeps no weight. One layer may be divided several
// times, as in a comparison, and ranks that are threads may share it.
#include "muster/parallel/tensor/cut_weights.h"

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using WeakTensor = c10::weak_intrusive_ptr<TensorImpl>;

struct CutWeight {
  const Module* layer;  // only compared
  WeakTensor whole, part;
};

struct CutWeights {
  std::mutex mutex;
  std::vector<CutWeight> all;
};

CutWeights& cut_weights() {
  static CutWeights weights;
  return weights;
}

}  // namespace

std::string wrong_tie(const char* call,
                      const Module& layer,
                      const Tensor& whole,
                      const ProcessGroup& group) {
  CutWeights& weights = cut_weights();
  const Lock lock(weights.mutex);
  const bool is_tied = any_of(weights.all, [&](const CutWeight& cut) {
    return cut.layer != &layer && !cut.part.expired() && !cut.whole.expired() &&
           cut.whole._unsafe_get_target() == whole.unsafeGetTensorImpl();
  });
  if (!is_tied || !whole.requires_grad())
    return {};
  return cat(call,
             ": expected a weight of this layer alone, got one tied to a layer that is divided "
             "already, of which this one's parts would be trained apart (rank ",
             group.job_rank(),
             "); divide one of them, and compute the other with its part: "
             "torch::linear(muster::copy_to_group(x, group), token->weight)");
}

void remember_cut(const Module& layer, const Tensor& whole, const Tensor& part) {
  CutWeights& weights = cut_weights();
  const Lock lock(weights.mutex);
  std::erase_if(weights.all, [](const CutWeight& cut) { return cut.part.expired(); });
  weights.all.push_back({.layer = &layer,
                         .whole = WeakTensor(whole.getIntrusivePtr()),
                         .part = WeakTensor(part.getIntrusivePtr())});
}

}  // namespace muster
