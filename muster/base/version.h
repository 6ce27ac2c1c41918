// Which muster this is.
#pragma once

namespace muster {

const char* version();  // "0.1.0"

}  // namespace muster
