// The activity file gets a call's facts when it begins, and its end by the number that it gave.
#include "muster/comm/call/record.h"

#include <utility>

#include "muster/base/lookup.h"

namespace muster {

thread_local CallRecord* OuterRecord::current_ = nullptr;

// Names as short as people write them; LibTorch's own for other types.
const char* short_type(ScalarType type) {
  constexpr std::pair<ScalarType, const char*> kNames[] = {{at::kFloat, "f32"},
                                                           {at::kDouble, "f64"},
                                                           {at::kHalf, "f16"},
                                                           {at::kBFloat16, "bf16"},
                                                           {at::kLong, "i64"},
                                                           {at::kInt, "i32"},
                                                           {at::kShort, "i16"},
                                                           {at::kChar, "i8"},
                                                           {at::kByte, "u8"},
                                                           {at::kBool, "bool"},
                                                           {at::kComplexFloat, "c64"},
                                                           {at::kComplexDouble, "c128"}};
  return lookup(kNames, type, toString(type));
}

// No file is open in most programs: then there is nothing to record.
CallRecord::CallRecord(const char* group,
                       const char* operation,
                       int64_t sequence,
                       const Tensor* tensor,
                       int peer,
                       int tag) {
  Activity* const activity = Activity::get();
  if (activity == nullptr)
    return;
  CallFacts facts{
      .group = group, .operation = operation, .sequence = sequence, .peer = peer, .tag = tag};
  if (tensor != nullptr && tensor->defined()) {
    facts.type = short_type(tensor->scalar_type());
    facts.sizes = tensor->sizes().data();
    facts.dimensions = tensor->sizes().size();
    // The entries of a sparse tensor differ from rank to rank, and are no facts of the call.
    if (tensor->layout() == at::kStrided)
      facts.bytes = tensor->numel() * tensor->element_size();
  }
  number_ = activity->begin_call(facts);
}

}  // namespace muster
