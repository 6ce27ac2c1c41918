// The manifests say all that is compared, so that a program, a removal and a list agree.
#include "muster/checkpoint/files/best.h"

#include <cmath>
#include <tuple>

#include "muster/base/error.h"

namespace muster {

std::string training_of(const Manifest& manifest) {
  for (const char* key : {kBegunBy, kRunId})
    if (const auto found = manifest.user.find(key); found != manifest.user.end())
      return found->second;
  return "";
}

// A NaN is not better than anything.
bool is_better(double value, double than, bool larger_is_better) {
  return larger_is_better ? value > than : value < than;
}

void BestCheckpoint::look_at(const std::string& path, const Manifest& manifest) {
  const auto& metric = manifest.metric;
  if (!metric)
    return;
  if (!metric_)
    metric_ = metric;
  const bool is_compared = std::tie(metric->name, metric->larger_is_better) ==
                           std::tie(metric_->name, metric_->larger_is_better);
  if (!is_compared || !metric->value)
    return;
  const double value = *metric->value;
  const bool is_first = value == value_ && manifest.serial < serial_;
  if (!path_.empty() && !is_first && !is_better(value, value_, metric->larger_is_better))
    return;
  path_ = path;
  value_ = value;
  serial_ = manifest.serial;
}

// A checkpoint whose manifest cannot be read says no metric, and cannot be the best.
std::string best_checkpoint(const std::string& directory, const IsOwn& is_own) {
  BestCheckpoint best;
  for (const SavedFolder& folder : list_by_saving(directory, is_own)) {
    if (folder.is_abandoned)
      continue;
    try {
      const Manifest manifest = read_manifest(folder.path);
      if (!is_own || is_own(manifest))
        best.look_at(folder.path, manifest);
    } catch (const Error&) {
      continue;
    }
  }
  return best.path();
}

}  // namespace muster
