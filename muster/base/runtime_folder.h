// The folder in which a user's jobs on one host find each other: leases on GPUs, and who runs. For leases,
// the registry of jobs and meeting files.
#pragma once

#include <string>

#include "muster/base/fd.h"

namespace muster {

// $XDG_RUNTIME_DIR/muster when that variable names a folder of this user, else /tmp/muster-<uid>.
std::string default_runtime_folder();

// The folder, made (mode 0700) when `create`; invalid when it is absent and not to be made. Never through a
// link: in /tmp, anybody may have put one there. Throws: failed_precondition when it is a link, another
// user's, or open to others; io.
Fd open_runtime_folder(const std::string& path, bool create);

}  // namespace muster
