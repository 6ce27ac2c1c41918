// The lock on a folder in which a job writes, so that two jobs never mix their files. A start of a
// job of several hosts has launchers that may share the folder: they hold the lock together, by the
// start's id. The kernel releases it with its last holder. For job_setup.h.
#pragma once

#include <string>

#include "muster/base/fd.h"

namespace muster {

inline constexpr const char* kFolderLock = ".lock";  // the file's name

class FolderLock {
 public:
  // Locks nothing.
  FolderLock() = default;

  // Makes the folder where there is none. `start`: an id that the launchers of one start of a job
  // have in common. Blocking: some seconds, while another start has the folder. Without locks in
  // the file system, or without the right to write there, it goes on without. Throws:
  // failed_precondition when the folder is in use; io.
  FolderLock(const std::string& folder, const std::string& start);

  // Whether the start has not been in the folder before. Then this launcher is alone there until
  // share().
  bool is_new_start() const { return is_new_start_; }

  // Lets the start's other launchers come in.
  void share();

  // Removes its file, for a folder that is to go.
  void remove_file() const;

 private:
  bool try_lock(const std::string& start);

  std::string path_ = {};
  Fd file_ = {};
  bool is_new_start_ = true;
};

}  // namespace muster
