// How fast devices are, as the user or a measurement told it (Request::scores). For the fastest
// policy, the selection fastest:N and the batch shares.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "muster/device/inventory.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

using Scores = std::map<std::string, double>;

// Throws: invalid_argument when a score is not a finite number above 0; it tells to correct `from`.
void check_scores(const Scores& scores, const std::string& from = "it");

// By UUID, "host:index", index or model, the first of these that is listed. A MIG instance has its
// own UUID and model ("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), and no index.
std::optional<double> score_of(const Scores& scores, const Host& host, const UsableGpu& device);

// Of a CPU slot: "host:cpu" or "cpu".
std::optional<double> cpu_score(const Scores& scores, const Host& host);

// score_of, where there must be one. Throws: invalid_argument that begins with `operation`.
double need_score(const Scores& scores,
                  const Host& host,
                  const UsableGpu& device,
                  const char* operation);

}  // namespace muster
