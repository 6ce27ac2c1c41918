// The lock on a folder in which a job writes, so that two jobs never mix their files. A start of a
// job of several hosts has launchers that may share the folder: they hold the lock together, by the
// start's id. The kernel releases it with its last holder. On some mounts (NFS with local_lock)
// locks reach one host alone: there, hosts of one start go by the id. For launchers, and for
// whoever saves checkpoints or writes metrics.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

inline constexpr auto kFolderLock = ".lock";  // the file's name

// What a job wants, and who it is.
struct FolderClaim {
  std::string folder{};
  std::string file = kFolderLock;
  // Those that have the same start may hold the folder together. Empty: it has no others.
  std::string start{};
  // Not empty: only with those of another attempt, which are at their end.
  std::string attempt{};
  // For the holder before to end: the agents of a launcher that was killed take some 2 s to end
  // their ranks, and have it until then.
  milliseconds patience{5'000};
};

class FolderLock {
 public:
  // Locks nothing.
  FolderLock() = default;

  // Makes the folder where there is none. Blocking: some seconds, while another start has the
  // folder. Without locks in the file system, or without the right to write there, it goes on
  // without. Throws: failed_precondition when the folder is in use; io.
  explicit FolderLock(FolderClaim claim);
  FolderLock(const std::string& folder, const std::string& start)
      : FolderLock(FolderClaim{.folder = folder, .start = start}) {}

  // Whether the start has not been in the folder before. Then this launcher is alone there until
  // share().
  bool is_new_start() const { return is_new_start_; }

  // Takes the lock alone, if nobody else holds the folder, of this start either: then nobody else
  // comes in until share(). False where others do, and without locks.
  bool try_alone() const;

  // Why it holds nothing: "Read-only file system". Empty: it holds the folder.
  const std::string& why_not() const { return why_not_; }

  // Lets the start's others come in.
  void share();

  // Removes its file, for a folder that is to go.
  void remove_file() const;

  // The same where no other holds the folder too: call it last. A forked child leaves its parent's.
  void remove_file_if_alone();

  // False in a forked child, which shares its parent's.
  bool is_of_this_process() const { return owner_ == ::getpid(); }

 private:
  bool try_lock();
  bool may_share(const Strings& note) const;
  void go_on_without(int error);

  FolderClaim claim_;
  std::string path_;
  Fd file_;
  pid_t owner_ = ::getpid();
  bool is_new_start_ = true;
  std::string why_not_;
};

// Who holds the folder, as an error names it: "process 4711 on host-a, since 2026-01-31 12:00:00".
// Empty: nobody, as far as can be seen. This process's own locks count too.
std::string holder_of_folder(const FolderClaim& claim);

}  // namespace muster
