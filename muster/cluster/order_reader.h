// Reads the log of orders as a host does: waits for the next, and where orders come faster than
// they are read takes several at a time. When a thousand hosts are lost at once, the coordinator
// writes a thousand orders, and every other host reads them all.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/store/store.h"

namespace muster {

class OrderReader {
 public:
  // `next`: the number of the first order to read.
  explicit OrderReader(int64_t next = 1) : next_(next) {}

  int64_t next() const { return next_; }

  // The entries from next() on, as many as there are, or fewer. Blocking: `patience` for one, and
  // empty if none comes. Throws: as Store.
  Strings read(Store& store, milliseconds patience);

  // The first of what was read is done with; the others are read again unless this is called for
  // each.
  void pass();

 private:
  Strings several(Store& store) const;

  int64_t next_;
  int64_t in_a_row_ = 0;  // orders, since there was none to read
};

}  // namespace muster
