// The manifests say all that is compared, so that a program, a removal and a list agree.
#include "muster/checkpoint/files/best.h"

#include <tuple>

#include "muster/base/error.h"
#include "muster/base/lookup.h"

namespace muster {

namespace {

// Whether a checkpoint that is not whole says that it is one of the training.
bool says_it_is_own(const std::string& path, const IsOwn& is_own) {
  const auto manifest = manifest_if_readable(path);
  return !is_own || (manifest && is_own(*manifest));
}

}  // namespace

std::string training_of(const Manifest& manifest) {
  for (const char* key : {kBegunBy, kRunId})
    if (const std::string* found = value_at(manifest.user, key))
      return *found;
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

OwnCheckpoints::OwnCheckpoints(const std::string& directory, const IsOwn& is_own) {
  for (const SavedFolder& folder : list_by_saving(directory, is_own))
    add(folder, is_own);
}

void OwnCheckpoints::add(const SavedFolder& folder, const IsOwn& is_own) {
  const auto is_ours = [&](const Manifest& manifest) {
    return !is_own || is_own(manifest);
  };
  try {
    const Manifest manifest = read_manifest(folder.path);
    if (!is_ours(manifest))
      return;
    rows_.push_back({.path = folder.path, .damage = ""});
    if (!folder.is_abandoned)
      best_.look_at(folder.path, manifest);
  } catch (const Error& error) {
    if (says_it_is_own(folder.path, is_own))
      rows_.push_back({.path = folder.path, .damage = error.message()});
  }
}

}  // namespace muster
