// The folder of checkpoints: finds them, writes one under a temporary name and renames it in one
// step, removes old ones and leftovers of killed writers. Called by checkpoint.h on rank 0; knows
// nothing of their contents.
//
//   step-120/              a checkpoint
//   step-130.tmp-1f0c…/    one being written (its writer holds a lock on it), or left by a dead
//                          writer
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/fd.h"
#include "muster/base/no_copy.h"

namespace muster {

struct StepFolder {
  int64_t step = 0;
  std::string path;
};

// Whether the path ends in a checkpoint's name, "step-12".
bool is_checkpoint_name(const std::string& path);

// Newest first; empty if there is no such folder. Throws: io if it cannot be read.
std::vector<StepFolder> list_checkpoints(const std::string& directory);

// Creates the folder (and its parents), durably. Throws: io.
void make_directory(const std::string& directory);

// Removes and logs folders of unfinished writes whose writer is dead. On a file system without
// locks they stay.
void remove_leftovers(const std::string& directory);

// Removes a checkpoint such that a kill in between leaves no half of it.
void remove_checkpoint(const std::string& path);

// Throws: unavailable if fewer than `bytes` are free there.
void check_space(const std::string& directory, uint64_t bytes);

// A checkpoint being written. Removed again unless published.
class Staging : NoCopy {
 public:
  // Throws: io.
  Staging(const std::string& directory, int64_t step);
  ~Staging();

  const std::string& path() const { return path_; }

  // Renames it to its final name, durably, replacing a checkpoint of the same step. Returns the
  // final path. Throws: io.
  std::string publish();

 private:
  std::string directory_;
  std::string final_path_;
  std::string path_;
  Fd lock_;
  bool published_ = false;
};

}  // namespace muster
