// A lock on a folder that all of this process holds together: several trainings in it, and several
// writers of one training, are one job. For checkpoints and metrics.
#pragma once

#include <memory>
#include <string>

#include "muster/base/folder_lock.h"

namespace muster {

// The launch of a job, and how often its ranks were started before. A later attempt may have a
// folder while an earlier one ends.
struct JobLaunch {
  std::string launch{};  // empty: not known
  int attempt = 0;
};

// Held while it lives; its file is removed then, unless another process shares it. Makes the
// folder. Where the folder cannot be locked, it warns as `subject` and holds nothing: another job
// that `does` so is not refused. A forked child is another process. Blocking: some seconds, while
// another process has it; locks of other folders wait too. Throws: failed_precondition naming the
// other; io.
std::shared_ptr<const FolderLock> lock_for_process(const std::string& folder,
                                                   const std::string& file,
                                                   const JobLaunch& job,
                                                   const std::string& subject,
                                                   const std::string& does);

// The other process that has the lock now, as FolderLock's error names it; empty: none.
std::string other_process_with(const std::string& folder, const std::string& file);

}  // namespace muster
