// Short names of functions that somebody hands over, to be called later or in between.
#pragma once

#include <functional>
#include <string>

namespace muster {

using Callback = std::function<void()>;
using Condition = std::function<bool()>;
using TextFunction = std::function<void(const std::string&)>;
using SignalFunction = std::function<void(int signal)>;

}  // namespace muster
