// What c10d's objects are held by, and its types that sources name without their namespace. Not for
// public headers.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace c10::ivalue {
struct Future;
}

namespace c10d {
class Backend;
class Store;
class Work;
enum class OpType : uint8_t;
struct AllToAllOptions;
struct AllgatherOptions;
struct AllreduceCoalescedOptions;
struct AllreduceOptions;
struct BarrierOptions;
struct BroadcastOptions;
struct GatherOptions;
struct ReduceOptions;
struct ReduceScatterOptions;
struct ScatterOptions;
}  // namespace c10d

namespace muster {

using c10d::AllgatherOptions;
using c10d::AllreduceCoalescedOptions;
using c10d::AllreduceOptions;
using c10d::AllToAllOptions;
using c10d::BarrierOptions;
using c10d::BroadcastOptions;
using c10d::GatherOptions;
using c10d::OpType;
using c10d::ReduceOptions;
using c10d::ReduceScatterOptions;
using c10d::ScatterOptions;

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using StoreBytes = std::vector<uint8_t>;  // a value, as c10d's store has it

// Keys of its own in the store.
StorePtr store_part(const StorePtr& store, const std::string& name);

}  // namespace muster
