// The order in which a folder's checkpoints were saved. A training that goes back to an older step
// abandons the later ones. They stay in the folder, but resuming and pruning prefer the current
// branch. Called by the code that loads or removes checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/manifest.h"

namespace muster {

struct SavedFolder {
  int64_t step = 0;
  std::string path{};
  bool is_abandoned = false;  // of an abandoned branch
};

using SavedFolders = std::vector<SavedFolder>;

using IsOwn = std::function<bool(const Manifest&)>;

// The current branch comes first, then abandoned ones; in each, the newest comes first. The newest
// checkpoint accepted by `is_own` (if given) says which are abandoned. A checkpoint with an
// unreadable manifest is placed by its step. Throws: io if the folder cannot be read.
SavedFolders list_by_saving(const std::string& directory, const IsOwn& is_own = {});

// Lists only `only` if that is not empty. Throws: invalid_argument if it does not exist.
SavedFolders list_by_saving(const std::string& directory,
                            const std::string& only,
                            const IsOwn& is_own = {});

// Whether `accept` (if given) takes the checkpoint. One whose manifest cannot be read is not taken,
// with a warning: whose it is cannot be told.
bool is_accepted(const std::string& path, const IsOwn& accept);

// The damaged checkpoints that a load has passed over.
class SkippedCheckpoints {
 public:
  void add(const std::string& path, const Error& error, bool warns = true);
  // Throws: io, with the reason for each, if there are any: a training that is to go on must not
  // begin anew.
  void refuse_if_any(const std::string& directory) const;

 private:
  std::string problems_;
};

// Warns that the checkpoint is of an abandoned branch, and is loaded because no later one is
// complete.
void warn_of_abandoned(const std::string& path);

// The serial number of the next checkpoint, beyond all ranges.
int64_t next_serial(const std::string& directory, const SerialRanges& abandoned = {});

// The ranges for a training that goes on from a checkpoint: the checkpoint's own, and everything
// saved after it. `last` is the folder's newest serial number.
SerialRanges abandoned_after(const SerialRanges& abandoned, int64_t serial, int64_t last);

}  // namespace muster
