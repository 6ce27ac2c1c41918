// Hooks that remember nothing: the plain average, and halves. Both divide before they send, as
// Python's do: the sum of halves could be more than their type has.
#include <memory>
#include <string>

#include <ATen/Functions.h>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/hooks.h"

namespace muster {

namespace {

class AverageHook : public CommunicationHook {
 public:
  std::string name() const override { return "plain_average"; }
  Reduction reduce(GradientBucket bucket) override {
    bucket.tensor.div_(bucket.group.size());
    count_sent(bucket.tensor);
    return [tensor = bucket.tensor, work = bucket.group.all_reduce_async(bucket.tensor)]() mutable {
      work.wait();
      return tensor;
    };
  }
};

// Averages in 16 bits, and copies the result back to the bucket's type.
class HalfHook : public CommunicationHook {
 public:
  explicit HalfHook(ScalarType type) : type_(type) {}
  std::string name() const override {
    return type_ == kHalf ? "fp16_compression" : "bf16_compression";
  }
  Reduction reduce(GradientBucket bucket) override {
    const Tensor half = bucket.tensor.to(type_).div_(bucket.group.size());
    count_sent(half);
    return [half, tensor = bucket.tensor, work = bucket.group.all_reduce_async(half)]() mutable {
      work.wait();
      return tensor.copy_(half);
    };
  }

 private:
  ScalarType type_;
};

}  // namespace

Hook plain_average() {
  return {std::make_shared<AverageHook>()};
}

Hook fp16_compression() {
  return {std::make_shared<HalfHook>(kHalf)};
}

Hook bf16_compression() {
  return {std::make_shared<HalfHook>(kBFloat16)};
}

}  // namespace muster
