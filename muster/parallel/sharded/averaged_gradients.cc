// Gradients that nobody averages differ from the first step on. An average that each rank computes
// in an order of its own differs by roundings, which move no parameter elsewhere.
#include "muster/parallel/sharded/averaged_gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/value_sample.h"

namespace muster {

namespace {

constexpr double kLeastTolerance = 1e-3;

int compared_steps(const ProcessGroup& group) {
  return group.device().is_cuda() ? 1 : 3;
}

// Shapes: [1, parameters, 3]. Parameters without a gradient have no sample.
Tensor gradient_samples(const Tensors& parameters) {
  const Tensor samples = at::empty({1, std::ssize(parameters), 3}, kDouble);
  auto* to = samples.mutable_data_ptr<double>();
  for (const ValueSample& sample : awaited_samples_of(mapped(parameters, &Tensor::grad))) {
    *to++ = sample.sum;
    *to++ = sample.size;
    *to++ = std::max(sample.tolerance, kLeastTolerance);
  }
  return samples;
}

ValueSample gradient_sample_at(const Tensor& samples, int64_t rank, int64_t parameter) {
  const double* const from = samples[rank][parameter].const_data_ptr<double>();
  return {.sum = from[0], .size = from[1], .tolerance = from[2]};
}

[[noreturn]] void refuse_unlike_gradients(const Tensor& parameter,
                                          int first,
                                          int other,
                                          const ProcessGroup& group) {
  throw failed_precondition(
      "sharded optimizer: expected the same gradients on every rank, averaged over them, "
      "got others on rank ",
      group.job_rank(other),
      " than on rank ",
      group.job_rank(first),
      " of a parameter of shape [",
      sizes_text(parameter),
      "] (rank ",
      group.job_rank(),
      "); wrap the model that has the parameter in DistributedDataParallel, which must not "
      "ignore it, or give the optimizer {.gradients = true}");
}

// The first rank that has a gradient is the one that the others are compared with.
void require_alike(const Tensor& parameter,
                   const Tensor& samples,
                   int64_t index,
                   const ProcessGroup& group) {
  int first = 0;
  while (first < group.size() && !gradient_sample_at(samples, first, index).is_taken())
    ++first;
  for (int other = first + 1; other < group.size(); ++other) {
    const ValueSample sample = gradient_sample_at(samples, other, index);
    if (gradient_sample_at(samples, first, index).differs_from(sample))
      refuse_unlike_gradients(parameter, first, other, group);
  }
}

}  // namespace

// A comparison that fails is not counted: a program that goes on nevertheless fails again.
void AveragedGradients::require(const Tensors& parameters, ProcessGroup& group) {
  if (group.size() == 1 || compared_ == compared_steps(group))
    return;
  const NoGradGuard no_grad;
  const Tensor mine = gradient_samples(parameters).to(group.device());
  const Tensor gathered = mine.new_empty({group.size(), mine.size(1), 3});
  group.all_gather(gathered, mine);
  const Tensor samples = gathered.cpu();
  for (const int64_t i : indices_below(samples.size(1)))
    require_alike(parameters[i], samples, i, group);
  ++compared_;
}

}  // namespace muster
