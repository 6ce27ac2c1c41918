// A backend whose collectives are compared between the ranks before another one runs them: for those that
// would hang or give wrong sums. What the façade's groups do themselves (agreement.h), for callers of c10d.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace muster {

// Every rank must have one, over the same store. The first collective with a type and shape waits until every
// rank has come. Its operations throw: invalid_argument with both sides; timeout naming who did not come.
c10::intrusive_ptr<c10d::Backend> make_agreeing(c10::intrusive_ptr<c10d::Backend> backend,
                                                c10::intrusive_ptr<c10d::Store> store,
                                                std::chrono::milliseconds timeout);

}  // namespace muster
