// One process at a time saves into a folder of checkpoints. Two would count, remove and replace
// each other's. Those that only load need no lock. For save_checkpoint and Checkpoints, on the rank
// that writes: rank 0, also of sharded checkpoints, since it makes and names their folders.
#pragma once

#include <memory>
#include <string>

#include "muster/base/process_lock.h"

namespace muster {

inline constexpr auto kSavingLock = ".saving";  // the file's name

// Kept while it lives, by all of this process together. Makes the folder. Where the folder cannot
// be locked, it warns and holds nothing. Blocking: some seconds, while another process has it.
// Throws: failed_precondition naming the other; io.
std::shared_ptr<const FolderLock> lock_for_saving(const std::string& directory,
                                                  const JobLaunch& job = {});

// The other process that saves there now, as FolderLock's error names it; empty: none.
std::string other_saver(const std::string& directory);

}  // namespace muster
