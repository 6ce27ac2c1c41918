// The checkpoints of a folder as `muster checkpoint ls` lists them, each with what is wrong with
// it. Knows no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/files/manifest.h"

namespace muster {

// A row of `muster checkpoint ls`.
struct ListedCheckpoint {
  int64_t step = 0;
  std::string path;
  std::optional<int64_t> serial{};  // how many were saved before it, from 1
  std::string parent{};             // "step-100", which it went on from; empty: none, or not known
  bool is_abandoned = false;        // of a branch that the training has left by going back
  int64_t written_seconds = 0;      // since 1970; 0: not known
  uint64_t bytes = 0;               // on the disk
  int world_size = 0;               // 0: not known
  std::optional<int64_t> epoch = {}, samples_seen = {};  // where the program said them
  std::optional<CheckpointMetric> metric{};              // likewise
  bool is_best = false;                                  // of its training, by the metric
  std::string problem{};  // why it is not whole; empty: manifest and sizes are right
};

using ListedCheckpoints = std::vector<ListedCheckpoint>;

// The folder itself, or the one of that name in a run's folder. Throws: invalid_argument when there
// is none.
std::string checkpoints_folder(const std::string& folder);

// Lists checkpoints in the order in which a resume tries them: the first whole one is what it
// takes. The last saved comes first, those of abandoned branches come last. Throws: io when the
// folder cannot be read.
std::vector<ListedCheckpoint> list_with_state(const std::string& directory);

}  // namespace muster
