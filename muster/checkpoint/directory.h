// The folder that checkpoints lie in: finding them, writing one aside and giving it its name in one step,
// removing old ones and what killed writers left. Called by checkpoint.h on rank 0; knows nothing of what is
// inside.
//
//   step-120/                   a checkpoint
//   step-130.tmp-1f0c…/         one being written (its writer holds a lock on it), or left by a dead writer
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/fd.h"

namespace muster {

struct StepFolder {
  int64_t step = 0;
  std::string path;
};

// Whether the path ends in a name that checkpoints have, "step-12".
bool is_checkpoint_name(const std::string& path);

// Newest first; empty when there is no such folder. Throws: io when it cannot be read.
std::vector<StepFolder> list_checkpoints(const std::string& directory);

// Makes the folder (and those above), durably. Throws: io.
void make_directory(const std::string& directory);

// Removes folders of unfinished writes whose writer is dead, and says so. Where the file system has no locks
// they stay.
void remove_leftovers(const std::string& directory);

// Removes a checkpoint so that, when killed on the way, none remains half.
void remove_checkpoint(const std::string& path);

// Throws: unavailable when less than `bytes` are free there.
void check_space(const std::string& directory, uint64_t bytes);

// A checkpoint being written. Removed again unless published.
class Staging {
 public:
  // Throws: io.
  Staging(const std::string& directory, int64_t step);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::string& path() const { return path_; }

  // Gives it its name, durably, in place of one of the same step. Returns the final path. Throws: io.
  std::string publish();

 private:
  std::string directory_;
  std::string final_path_;
  std::string path_;
  Fd lock_;
  bool published_ = false;
};

}  // namespace muster
