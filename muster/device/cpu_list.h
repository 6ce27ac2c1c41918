// The kernel's lists of CPUs, "0-31,64-95", to numbers and back. For probes, plans and binding.
#pragma once

#include <string>
#include <string_view>

#include "muster/base/lists.h"

namespace muster {

// Sorted, each once; the empty text is the empty list.
// Throws: invalid_argument for anything else, and for numbers beyond 65535.
Ints parse_cpu_list(std::string_view text);

std::string to_cpu_list(Ints cpus);

}  // namespace muster
