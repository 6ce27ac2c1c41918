// The activity file gets a call's facts when it begins, and its end by the number that it gave.
#include "muster/comm/call/record.h"

namespace muster {

thread_local CallRecord* OuterRecord::current_ = nullptr;

// Names as short as people write them; LibTorch's own for other types.
const char* short_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "f32";
    case at::kDouble:
      return "f64";
    case at::kHalf:
      return "f16";
    case at::kBFloat16:
      return "bf16";
    case at::kLong:
      return "i64";
    case at::kInt:
      return "i32";
    case at::kShort:
      return "i16";
    case at::kChar:
      return "i8";
    case at::kByte:
      return "u8";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "c64";
    case at::kComplexDouble:
      return "c128";
    default:
      return c10::toString(type);
  }
}

// No file is open in most programs: then there is nothing to record.
CallRecord::CallRecord(const char* group,
                       const char* operation,
                       int64_t sequence,
                       const at::Tensor* tensor,
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
