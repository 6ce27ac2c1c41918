// What is in front of every message between two ranks: what it is, for its receiver to compare with
// what it expects. For the mailbox, and for messages that take another way; it knows no tensor.
#pragma once

#include <cstdint>

#include "muster/base/error.h"
#include "muster/shm/collectives.h"

namespace muster::shm {

struct MessageFrame {
  uint64_t bytes = 0;
  int64_t tag = 0;
  uint64_t element = 1;  // bytes of one
  char type[24] = {};    // ends with 0; without a name any type fits
};

MessageFrame frame_of(const Part& data, int tag);

// Whether a message is of the length, the type and the tag that its receiver expects.
bool fits(const MessageFrame& wanted, const MessageFrame& sent);

// The receiver's error, which shows both sides. `from` and `rank` are the names of the ranks.
Error misfit(const MessageFrame& wanted, const MessageFrame& sent, int from, int rank);

}  // namespace muster::shm
