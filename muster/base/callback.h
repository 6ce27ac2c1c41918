// What somebody else calls, later or in between.
#pragma once

#include <functional>

namespace muster {

using Callback = std::function<void()>;

}  // namespace muster
