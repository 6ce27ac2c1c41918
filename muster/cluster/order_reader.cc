// A single order costs one question, which waits for it. Each that follows without a pause lets the
// next question ask for one more at once, up to a limit; one that finds nothing ends that.
#include "muster/cluster/order_reader.h"

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/cluster/messages.h"

namespace muster {

namespace {

constexpr int64_t kMostAtATime = 256;

}  // namespace

void OrderReader::pass() {
  ++next_;
  ++in_a_row_;
}

// Those that are there from next_ on, without a gap.
Strings OrderReader::several(Store& store) const {
  const Strings keys = mapped_indices(std::min(in_a_row_, kMostAtATime),
                                      [&](int64_t i) { return log_entry_key(kOrders, next_ + i); });
  Strings entries;
  for (auto& entry : store.values(keys)) {
    if (!entry)
      break;
    entries.push_back(*std::move(entry));
  }
  return entries;
}

Strings OrderReader::read(Store& store, milliseconds patience) {
  if (in_a_row_ > 1) {
    Strings entries = several(store);
    if (!entries.empty())
      return entries;
    in_a_row_ = 0;
  }
  try {
    return {store.get(log_entry_key(kOrders, next_), patience)};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout)
      throw;
    in_a_row_ = 0;
    return {};
  }
}

}  // namespace muster
