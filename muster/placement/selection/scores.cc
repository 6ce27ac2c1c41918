// A device is looked up by its names, the most exact one first; a score for a model is for all GPUs
// of it.
#include "muster/placement/selection/scores.h"

#include <cmath>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

std::optional<double> first_score(const Scores& scores, const Strings& keys) {
  for (const auto& key : keys) {
    if (const double* const score = value_at(scores, key))
      return *score;
  }
  return std::nullopt;
}

}  // namespace

void check_scores(const Scores& scores, const std::string& from) {
  for (const auto& [key, score] : scores) {
    if (std::isfinite(score) && score > 0)
      continue;
    throw invalid_argument(printable(
        cat("--scores: expected a number above 0, got ", score, " for ", key, "; correct ", from)));
  }
}

// An index or a host's name would mean all instances of a GPU, which differ in speed.
std::optional<double> score_of(const Scores& scores, const Host& host, const UsableGpu& device) {
  if (scores.empty())
    return std::nullopt;
  Strings keys = {uuid_of(host, device).value};
  if (!device.is_instance()) {
    const auto index = cat(gpu_of(host, device).index.value);
    append_all(keys, Strings{cat(host.name, ":", index), index});
  }
  keys.push_back(model_of(host, device));
  return first_score(scores, keys);
}

std::optional<double> cpu_score(const Scores& scores, const Host& host) {
  return first_score(scores, {cat(host.name, ":cpu"), "cpu"});
}

double need_score(const Scores& scores,
                  const Host& host,
                  const UsableGpu& device,
                  const char* operation) {
  if (const auto score = score_of(scores, host, device))
    return *score;
  const std::string model = model_of(host, device);
  throw invalid_argument(printable(
      cat(operation,
          ": expected a score for each GPU, got none for ",
          label_of(host, device),
          " of host ",
          host.name,
          " (",
          model.empty() ? "" : cat(model, ", "),
          uuid_of(host, device).value,
          "); measure them with `muster bench device`, or give `muster run` --scores FILE with all "
          "of them")));
}

}  // namespace muster
