// A barrier that names who has not come, whatever else the ranks do, and leaves the group as good
// as before: rank 0 hears every other rank, then answers each. Inside of comm/host.
#pragma once

#include <chrono>

#include "muster/base/clock.h"
#include "muster/comm/host/carrier.h"

namespace muster {

// Collective. No other message has the tag, which is the same on every rank. The words of its
// errors are those of PyTorch's Gloo, which tools look for. Throws: on rank 0 timeout, or
// peer_failed where ranks have ended, naming the first that did not come, or with `name_all` all of
// them; on the others the same, saying that rank 0 knows who; invalid_argument for no time at all.
void monitored_barrier(
    Carrier& carrier, int rank, int size, int tag, milliseconds timeout, bool name_all);

}  // namespace muster
