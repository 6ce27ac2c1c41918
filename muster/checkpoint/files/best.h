// Which checkpoint of a training is the best by its metric. Called by the code that lists and
// removes checkpoints. Knows no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/files/manifest.h"

namespace muster {

// Texts in Manifest::user.
inline constexpr auto kRunId = "run_id";
// The run that the training began in; others follow. A manifest of the first run says only its own
// run id.
inline constexpr auto kBegunBy = "begun_by";

// Which training the checkpoint is of: the run in which it began; empty if it does not say.
std::string training_of(const Manifest& manifest);

// Whether `value` is better than `than`.
bool is_better(double value, double than, bool larger_is_better);

// Finds the best among checkpoints of one training that are shown to it, the newest first. The
// newest that has a metric says by which it is. Of equal ones the first saved is the best.
class BestCheckpoint {
 public:
  void look_at(const std::string& path, const Manifest& manifest);
  const std::string& path() const { return path_; }  // empty: none has a metric

 private:
  std::optional<CheckpointMetric> metric_;
  std::string path_;
  double value_ = 0;
  int64_t serial_ = 0;
};

// The checkpoints of one training, in the order of list_by_saving(): their manifests are read once.
class OwnCheckpoints {
 public:
  struct Row {
    std::string path;
    std::string damage;  // why it is not whole; empty: it is
  };

  // A checkpoint that is not whole is one of the training only if it says so: other trainings may
  // have theirs in the folder. Throws: io if the folder cannot be read.
  OwnCheckpoints(const std::string& directory, const IsOwn& is_own);

  const std::vector<Row>& rows() const { return rows_; }
  // The best whole one that the training has not abandoned; empty if there is none.
  const std::string& best() const { return best_.path(); }

 private:
  void add(const SavedFolder& folder, const IsOwn& is_own);

  std::vector<Row> rows_;
  BestCheckpoint best_;
};

}  // namespace muster
