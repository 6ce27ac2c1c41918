// What pieces that shard state have given to collectives.
#pragma once

#include <cstdint>

namespace muster {

// Bytes of whole buffers, the padding included: of each, (N - 1)/N come from or go to other ranks.
struct ShardedTraffic {
  int64_t gathered = 0;
  int64_t scattered = 0;
};

}  // namespace muster
