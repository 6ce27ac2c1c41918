// The log of orders in a store: written by one coordinator at a time, read by every host. The plan
// of an order to start lies beside the log (stored_plan.h), so that a host reads its part alone. An
// entry that is larger than what the store takes is written in parts.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/strings.h"
#include "muster/cluster/messages.h"
#include "muster/store/store.h"

namespace muster {

struct WrittenOrder {
  bool is_ours = false;  // false: another coordinator has written this number
  Strings keys{};        // all that the order takes in the store
};

// Each number can be taken once. Throws: as Store.
WrittenOrder write_order(Store& store, int64_t number, const Order& order);

// All keys that the order takes whose entry this is, the entry's first: whoever finds it finds the
// rest. Throws: invalid_argument as read_order.
Strings keys_of_order(int64_t number, const std::string& entry, const StoredPlan& stored);

// The order of an entry of the log, with the whole plan. Throws: as Store; timeout where a part is
// not there any more; invalid_argument when the text is no order.
Order read_order(Store& store, const std::string& entry);

// The order as host `id` needs it: with its part of the plan, and if it is the first, with the
// whole besides. Throws: as read_order.
Order read_order_of_host(Store& store, const std::string& entry, const std::string& id);

}  // namespace muster
