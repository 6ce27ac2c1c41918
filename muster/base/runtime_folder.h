// The folder in which a user's jobs on one host find each other: leases on GPUs, and who runs. For
// leases, the registry of jobs and rendezvous files.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

// choose_runtime_folder() among /tmp, /var/tmp and /dev/shm, or MUSTER_RUNTIME_DIR alone. The
// folder is never below XDG_RUNTIME_DIR, which a login has and cron's jobs have not: both must see
// each other's leases.
std::string default_runtime_folder();

// muster-<uid> in the first of `places` where this user has that folder; where there is none yet,
// in the first where it can be made. So all of a user's processes choose the same, and a name that
// a stranger has taken, or a place that cannot be written, only leads to the next. The first
// place's, where none will do.
std::string choose_runtime_folder(const Strings& places);

// The mode of a file in it that has to outlive every process of muster that could lock the folder:
// what clears old files out of /tmp leaves a file with the sticky bit alone. Source: tmpfiles.d(5).
inline constexpr mode_t kKeptFile = S_ISVTX | 0600;

// The folder, made (mode 0700) when `create`; invalid when it is absent and not to be made. Never
// through a link: in /tmp, anybody may have put one there. With `create` it is locked (flock,
// shared) until the descriptor is closed: what clears old files out of /tmp does not enter a folder
// that is. Blocking: while that is inside, up to `patience`. Throws: failed_precondition when it is
// a link, another user's, or open to others; timeout; io.
Fd open_runtime_folder(const std::string& path,
                       bool create,
                       milliseconds patience = std::chrono::seconds(10));

}  // namespace muster
