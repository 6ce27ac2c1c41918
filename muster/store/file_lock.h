// The locks of a file store: one for an operation, one a member holds for its life. They are open
// file description locks, which the kernel releases when their holder ends, however it ends: so a
// lock is the proof that a member lives. Called by file_store.cc; knows nothing of records.
#pragma once

#include <optional>
#include <string>

#include "muster/base/clock.h"

namespace muster {

// Takes the lock under which the file may be read and changed.
// Blocking: until it is free or `deadline`. Throws: timeout naming `path`; io when the file system
// has no locks.
void lock_operation(int fd, const std::string& path, const Deadline& deadline);
void unlock_operation(int fd);

// Takes rank's own lock; false when another member holds it.
bool lock_member(int fd, int rank);
void unlock_member(int fd, int rank);

// The lowest rank whose member lives, the caller's own not counted.
std::optional<int> lowest_living_member(int fd);
bool is_member_alive(int fd, int rank);

}  // namespace muster
