// What the classes that shard state have passed to collectives.
#pragma once

#include <cstdint>

namespace muster {

// Bytes of whole buffers, including padding; (N - 1)/N of each come from or go to other ranks.
struct ShardedTraffic {
  int64_t gathered = 0;
  int64_t scattered = 0;
};

}  // namespace muster
