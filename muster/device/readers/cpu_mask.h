// Sets of CPUs as hexadecimal masks: the kernel's "00ffffff,00000000", which NCCL writes too, and
// hwloc's "0x00ff,0x0". For the readers of both.
#pragma once

#include <optional>
#include <string_view>

#include "muster/base/lists.h"

namespace muster {

// The numbers of the bits that are set, sorted; the last group is that of CPUs 0 to 31. Nothing for
// other texts and for numbers beyond 16383. Source: hwloc_bitmap_snprintf(3); Linux,
// Documentation/admin-guide/cputopology.
std::optional<Ints> parse_cpu_mask(std::string_view text);

}  // namespace muster
