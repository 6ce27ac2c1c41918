// Sends the largest numbers of each gradient and their places; the rest waits for later steps. All
// ranks gather all ranks' numbers and add them up in one order, so that they get the same bits.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/hook_memory.h"
#include "muster/ddp/hooks.h"

namespace muster {

namespace {

// The errors that are remembered are what has not been sent.
class TopKHook : public CommunicationHook {
 public:
  explicit TopKHook(const TopKOptions& options) : options_(options) {}
  std::string name() const override {
    return cat("top_k(density ",
               options_.density,
               options_.error_feedback ? "" : ", no error feedback",
               ")");
  }
  bool remembers() const override { return options_.error_feedback; }
  Reduction reduce(GradientBucket bucket) override;
  HookState state() const override {
    return {.tensors = {}, .own = errors_.copies("error."), .numbers = {}};
  }
  void load_state(const HookState& state) override {
    check_hook_state(name(), state, {.tensors = {}, .own = {"error."}, .numbers = {}});
    errors_.load("error.", state.own);
  }
  void end_step() override { errors_.end_step(finite_.end()); }
  void rescale(double factor) override { errors_.rescale(factor); }
  void recover(ProcessGroup& /*group*/) override {
    errors_.end_step(/*remembers=*/false);
    finite_ = {};
  }

 private:
  Tensor places_to_send(const GradientBucket& bucket) const;

  const TopKOptions options_;
  HookMemory errors_;
  FiniteStep finite_;
};

// Places in the bucket, chosen gradient by gradient, so that a large gradient does not silence a
// small one.
Tensor TopKHook::places_to_send(const GradientBucket& bucket) const {
  Tensors places;
  int64_t begin = 0;
  for (const Tensor& gradient : bucket.gradients) {
    const int64_t size = gradient.numel();
    const double wanted = std::ceil(options_.density * static_cast<double>(size));
    const auto count = std::clamp<int64_t>(static_cast<int64_t>(wanted), 1, size);
    const Tensor part = bucket.tensor.slice(0, begin, begin + size);
    places.push_back(std::get<1>(at::topk(part.abs(), count, 0)) + begin);
    begin += size;
  }
  return at::cat(places);
}

// Places go as 32-bit numbers where these suffice. The rest counts as sent only if the step ends
// well.
Reduction TopKHook::reduce(GradientBucket bucket) {
  ProcessGroup group = bucket.group;
  if (options_.error_feedback)
    errors_.add_to(bucket);
  const Tensor places = places_to_send(bucket);
  const Tensor values = bucket.tensor.index_select(0, places);
  Tensor rest;
  if (options_.error_feedback)
    rest = bucket.tensor.index_fill(0, places, 0);
  const bool small = bucket.tensor.numel() <= std::numeric_limits<int32_t>::max();
  const Tensor sent_places = small ? places.to(kInt) : places;
  count_sent(values);
  count_sent(sent_places);
  const Tensor all_values = at::empty({group.size() * values.numel()}, values.options());
  const Tensor all_places = at::empty({group.size() * values.numel()}, sent_places.options());
  Work values_work = group.all_gather_async(all_values, values);
  Work places_work = group.all_gather_async(all_places, sent_places);
  return [=, this]() mutable {
    values_work.wait();
    places_work.wait();
    if (rest.defined())
      errors_.keep(bucket, rest);
    Tensor tensor = bucket.tensor;
    tensor.zero_();
    const int64_t count = values.numel();
    for (const int rank : indices_below(group.size())) {
      tensor.index_add_(0,
                        all_places.slice(0, rank * count, (rank + 1) * count),
                        all_values.slice(0, rank * count, (rank + 1) * count));
    }
    tensor.div_(group.size());
    if (rest.defined())
      finite_.look(tensor);
    return tensor;
  };
}

}  // namespace

// NaN is no density either.
Hook top_k(const TopKOptions& options) {
  if (!(options.density > 0 && options.density <= 1)) {
    throw invalid_argument("top_k: expected a density above 0 and at most 1, got ",
                           options.density,
                           "; 0.01 is the default");
  }
  return {std::make_shared<TopKHook>(options)};
}

}  // namespace muster
