// What is said where one rank leaves a group while another calls something: of the one that leaves,
// which is the cause, and of the other, which fails of it.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/error.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/strings.h"

namespace muster {

// On the rank that leaves; `call` is that of rank `other`.
inline Error left_alone(int64_t sequence, int other, const std::string& call) {
  return invalid_argument("shutdown #",
                          sequence,
                          ": expected every rank to leave the group, got '",
                          call,
                          "' on rank ",
                          other,
                          "; make all ranks issue the same operations before one of them leaves");
}

// On the rank that makes `call`, of which rank `other` knows nothing.
inline Error left(int64_t sequence, const std::string& call, int other) {
  note_lost_rank(other);
  return Error(ErrorCode::peer_failed,
               "collective #",
               sequence,
               " ('",
               call,
               "'): rank ",
               other,
               " left the group: its function ended, or it called shutdown()");
}

}  // namespace muster
