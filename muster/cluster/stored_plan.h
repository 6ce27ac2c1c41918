// The plan of a round in a store, divided by hosts: each host reads its own ranks, and what these
// need of the whole is in the order itself. The whole is read by the first host, by a coordinator
// that takes over, and by a host that somebody asks about all of the job.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/strings.h"
#include "muster/cluster/messages.h"
#include "muster/store/store.h"

namespace muster {

// Writes what the order of this number says of its hosts and of the plan, under keys that no other
// order has. Throws: as Store.
StoredPlan store_plan(Store& store, int64_t number, const Order& order);

// All keys that it takes.
Strings keys_of(const StoredPlan& stored);

// The keys that a host reads for its part.
Strings keys_of_part(const StoredPlan& stored, const std::string& id);

// Gives the order, as it is in the log, the part of host `id`. Throws: as read_whole.
void read_part(Store& store, const std::string& id, Order& order);

// Of an order to start, as a host or a coordinator has read it. Throws: as Store; timeout where a
// part is not there any more; invalid_argument where the parts make no whole.
WholeRound read_whole(Store& store, const Order& order);

}  // namespace muster
