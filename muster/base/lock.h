// What holds a mutex until the end of a block.
#pragma once

#include <mutex>

namespace muster {

using Lock = std::lock_guard<std::mutex>;
using UniqueLock = std::unique_lock<std::mutex>;  // may be let go before

}  // namespace muster
