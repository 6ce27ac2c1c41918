// A device is looked up by its names, the most exact one first; a score for a model is for all GPUs
// of it.
#include "muster/placement/selection/scores.h"

#include <cmath>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

std::optional<double> find_score(const Scores& scores, const std::string& key) {
  const auto found = scores.find(key);
  if (found == scores.end())
    return std::nullopt;
  return found->second;
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
  if (const auto score = find_score(scores, uuid_of(host, device).value))
    return score;
  if (!device.is_instance()) {
    const std::string index = std::to_string(gpu_of(host, device).index.value);
    if (const auto score = find_score(scores, cat(host.name, ":", index)))
      return score;
    if (const auto score = find_score(scores, index))
      return score;
  }
  return find_score(scores, model_of(host, device));
}

std::optional<double> cpu_score(const Scores& scores, const Host& host) {
  if (const auto score = find_score(scores, cat(host.name, ":cpu")))
    return score;
  return find_score(scores, "cpu");
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
