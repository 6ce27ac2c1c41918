// Gradients that nobody averages differ from the first step on. An average that each rank computes
// in an order of its own differs by roundings, which move no parameter elsewhere.
#include "muster/parallel/sharded/averaged_gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/value_sample.h"

namespace muster {

namespace {

constexpr double kLeastTolerance = 1e-3;

int compared_steps(const ProcessGroup& group) {
  return group.device().is_cuda() ? 1 : 3;
}

// Shapes: [1, parameters, 3]. Parameters without a gradient have no sample.
at::Tensor gradient_samples(const std::vector<at::Tensor>& parameters) {
  const at::Tensor samples = at::empty({1, std::ssize(parameters), 3}, at::kDouble);
  auto* to = samples.mutable_data_ptr<double>();
  for (const at::Tensor& parameter : parameters) {
    const ValueSample sample = awaited_sample_of(parameter.grad());
    *to++ = sample.sum;
    *to++ = sample.size;
    *to++ = std::max(sample.tolerance, kLeastTolerance);
  }
  return samples;
}

ValueSample gradient_sample_at(const at::Tensor& samples, int64_t rank, int64_t parameter) {
  const double* const from = samples[rank][parameter].const_data_ptr<double>();
  return {.sum = from[0], .size = from[1], .tolerance = from[2]};
}

[[noreturn]] void refuse_unlike_gradients(const at::Tensor& parameter,
                                          int other,
                                          const ProcessGroup& group) {
  throw Error(
      ErrorCode::failed_precondition,
      cat("sharded optimizer: expected the same gradients on every rank, averaged over them, got "
          "others on rank ",
          group.job_rank(other),
          " than on rank ",
          group.job_rank(0),
          " of a parameter of shape [",
          join(parameter.sizes(), ", "),
          "] (rank ",
          group.job_rank(),
          "); wrap the model that has the parameter in DistributedDataParallel, which must not "
          "ignore it, or give the optimizer {.gradients = true}"));
}

}  // namespace

void AveragedGradients::require(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  if (group.size() == 1 || compared_ == compared_steps(group))
    return;
  ++compared_;
  const at::NoGradGuard no_grad;
  const at::Tensor mine = gradient_samples(parameters).to(group.device());
  const at::Tensor gathered = mine.new_empty({group.size(), mine.size(1), 3});
  group.all_gather(gathered, mine);
  const at::Tensor samples = gathered.cpu();
  for (int64_t i = 0; i < samples.size(1); ++i) {
    const ValueSample first = gradient_sample_at(samples, 0, i);
    for (int rank = 1; rank < group.size(); ++rank) {
      if (first.differs_from(gradient_sample_at(samples, rank, i)))
        refuse_unlike_gradients(parameters[i], rank, group);
    }
  }
}

}  // namespace muster
