#include "muster/comm/call/record.h"

namespace muster {

thread_local CallRecord* OuterRecord::current_ = nullptr;

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
    // Of a sparse one the entries that there are, which differ from rank to rank, are no facts of
    // the call.
    if (tensor->layout() == at::kStrided)
      facts.bytes = static_cast<int64_t>(tensor->nbytes());
  }
  number_ = activity->begin_call(facts);
}

}  // namespace muster
