// The form of the file is checked here. What a score may be is a rule of the planner, for scores
// from anywhere, and is asked for here too, since errors name the file.
#include "muster/launch/score_file.h"

#include <nlohmann/json.hpp>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/device/strict_json.h"
#include "muster/placement/selection/scores.h"

namespace muster {

std::map<std::string, double> read_scores(const std::string& path) {
  const auto json = parse_strict_json(read_small_file(path), cat("--scores ", path));
  std::map<std::string, double> scores;
  const auto refuse = [&](const std::string& got) {
    throw bad_flag("--scores",
                   "a JSON object of numbers above 0 as in {\"0\": 100, \"1\": 90}",
                   got,
                   cat("correct ", printable(path)));
  };
  if (!json.is_object())
    refuse(json.type_name());
  for (const auto& [gpu, score] : json.items()) {
    if (!score.is_number())
      refuse(cat(score.type_name(), " for ", printable(gpu)));
    scores[gpu] = score.get<double>();
  }
  check_scores(scores, path);
  return scores;
}

}  // namespace muster
