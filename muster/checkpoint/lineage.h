// The order in which the checkpoints of a folder were saved. A training that goes back to an older step
// abandons the later ones: they stay in the folder, but neither a resume nor a pruning prefers them to the
// branch that the training is on. Called by whoever loads or removes checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/checkpoint/directory.h"
#include "muster/checkpoint/manifest.h"

namespace muster {

struct SavedFolder {
  int64_t step = 0;
  std::string path = {};
  bool is_abandoned = false;  // of an abandoned branch
};

using IsOwn = std::function<bool(const Manifest&)>;

// The branch that the training is on comes first, then the abandoned ones; within both, the last saved comes
// first. The newest checkpoint that `is_own` accepts (without it: the newest) says which are abandoned. A
// checkpoint whose manifest cannot be read is placed by its step. Throws: io when the folder cannot be read.
std::vector<SavedFolder> list_by_saving(const std::string& directory, const IsOwn& is_own = {});

// The same, or `only` alone, where that is not empty. Throws: invalid_argument when it is not there.
std::vector<SavedFolder> list_by_saving(const std::string& directory, const std::string& only,
                                        const IsOwn& is_own = {});

// Warns that the checkpoint is of an abandoned branch, and is loaded because no later one is whole.
void warn_of_abandoned(const std::string& path);

// The serial number of the next checkpoint. It lies beyond all ranges.
int64_t next_serial(const std::string& directory, const std::vector<SerialRange>& abandoned = {});

// The ranges for a training that goes on from a checkpoint: that checkpoint's own, and all that was saved
// after it. `last` is the newest serial number of the folder.
std::vector<SerialRange> abandoned_after(const std::vector<SerialRange>& abandoned, int64_t serial,
                                         int64_t last);

}  // namespace muster
