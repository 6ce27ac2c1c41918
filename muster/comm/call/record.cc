// The activity file gets a call's facts when it begins, and its end by the number that it gave.
#include "muster/comm/call/record.h"

#include "muster/base/lookup.h"

namespace muster {

thread_local CallRecord* OuterRecord::current_ = nullptr;

// Names as short as people write them; LibTorch's own for other types.
const char* short_type(ScalarType type) {
  constexpr std::pair<ScalarType, const char*> kNames[] = {{kFloat, "f32"},
                                                           {kDouble, "f64"},
                                                           {kHalf, "f16"},
                                                           {kBFloat16, "bf16"},
                                                           {kLong, "i64"},
                                                           {kInt, "i32"},
                                                           {kShort, "i16"},
                                                           {kChar, "i8"},
                                                           {kByte, "u8"},
                                                           {kBool, "bool"},
                                                           {kComplexFloat, "c64"},
                                                           {kComplexDouble, "c128"}};
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
    if (tensor->layout() == kStrided)
      facts.bytes = tensor->numel() * tensor->element_size();
  }
  number_ = activity->begin_call(facts);
}

}  // namespace muster
