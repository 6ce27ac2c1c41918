// Nothing that a step calls waits for a GPU: counts stay where the loss is.
#include "muster/train/summed_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/train/device_copy.h"

namespace muster {

namespace {

void check_is_one_element(const char* what, const Tensor& tensor, const std::string& place) {
  if (tensor.defined() && tensor.numel() == 1)
    return;
  throw invalid_argument(
      "train step: expected a SummedLoss with a ",
      what,
      " of one element, got ",
      tensor.defined() ? cat("one of shape [", sizes_text(tensor), "]") : "none",
      place,
      "; return the sum of the batch's losses and their number, as .sum() gives it");
}

Tensor sum_over_ranks(const Tensor& count, std::optional<ProcessGroup>& group) {
  Tensor sum = count.clone();
  if (group)
    group->all_reduce(sum);
  return sum;
}

// A divisor of sums that are 0 where the count is.
Tensor not_zero(const Tensor& count) {
  return count.masked_fill(count == 0, 1);
}

double size_of(const std::optional<ProcessGroup>& group) {
  return group ? group->size() : 1;
}

}  // namespace

SummedLoss as_scalars(const SummedLoss& loss, const std::string& place) {
  check_is_one_element("sum", loss.sum, place);
  check_is_one_element("count", loss.count, place);
  const Tensor count = copied_to(loss.sum.device(), loss.count.detach());
  return {.sum = loss.sum.reshape({}), .count = count.to(kDouble).reshape({})};
}

Tensor mean_of(const SummedLoss& loss) {
  return (loss.sum / not_zero(loss.count)).detach();
}

// A half's range is too small for the unit of many losses.
Tensor LossCounts::add(const SummedLoss& loss, std::optional<ProcessGroup>& group) {
  note(loss.count, group);
  const ScalarType type = c10::promoteTypes(loss.sum.scalar_type(), kFloat);
  return loss.sum.to(type) / copied_to(loss.sum.device(), unit_).to(type);
}

void LossCounts::note(const Tensor& count, std::optional<ProcessGroup>& group) {
  const NoGradGuard no_grad;
  if (!unit_.defined())
    unit_ = not_zero(sum_over_ranks(count, group) / size_of(group)).log2().floor().exp2();
  count_ = count_.defined() ? count_ + count : count;
}

double LossCounts::unit() const {
  return unit_.defined() ? unit_.item<double>() : 0;
}

void LossCounts::set_unit(double unit) {
  unit_ = unit > 0 ? at::full({}, unit, kDouble) : Tensor();
}

LossCounts::Factors LossCounts::factors(std::optional<ProcessGroup>& group) const {
  const NoGradGuard no_grad;
  const Tensor all = not_zero(sum_over_ranks(count_, group));
  const Tensor unit = copied_to(all.device(), unit_);
  return {.averaged = unit * size_of(group) / all, .own = unit / not_zero(count_)};
}

}  // namespace muster
