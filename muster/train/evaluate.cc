// Sums, and not means, are added over the ranks, since ranks may have different numbers of samples.
// The number of samples is added too: it says whether each was counted once.
#include "muster/train/evaluate.h"

#include <string>

#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/saved_state.h"

namespace muster {

namespace {

// Refuses a mean over other samples than the dataset's. `bad` are those that could not be read.
void check_counted(int64_t dataset_size, double counted, double bad) {
  const double all = as_number(dataset_size);
  if (counted + bad == all)
    return;
  std::string got = cat("got ", counted);
  if (bad > 0)
    got += cat(" and ", bad, " that cannot be read");
  const char* const wanted = counted + bad > all
                                 ? "repeats none: sampling with pad = false"
                                 : "leaves out none: no drop_last, in the loader or its sampler";
  throw Error(ErrorCode::invalid_argument,
              cat("evaluate: expected each of ",
                  dataset_size,
                  " samples once, ",
                  got,
                  " on all ranks together; give a loader that ",
                  wanted));
}

}  // namespace

// A submodule may be in another mode than the model, as a frozen batch norm is.
EvaluationMode::EvaluationMode(torch::nn::Module& model, ProcessGroup& group) : model_(model) {
  for (const at::Tensor& buffer : model.buffers())
    if (group.size() > 1 && buffer.defined())
      group.broadcast(buffer, 0);
  for (const auto& module : model.modules(/*include_self=*/false))
    modes_.emplace_back(module, module->is_training());
  was_training_ = model.is_training();
  model.eval();
}

// Parents come first: train() sets the mode of everything inside.
EvaluationMode::~EvaluationMode() {
  model_.train(was_training_);
  for (const auto& [module, was_training] : modes_)
    module->train(was_training);
}

// The sum stays on the device: adding never waits for it.
void SampleMeans::add(const at::Tensor& values, int64_t samples) {
  const at::Tensor value = values.detach().to(at::kDouble);
  if (value.dim() > 0 && value.numel() != samples) {
    throw Error(ErrorCode::invalid_argument,
                cat("evaluate: expected a score with one value for each of ",
                    samples,
                    " samples, or their mean, got shape [",
                    join(value.sizes(), ", "),
                    "]; take the mean over the other dimensions"));
  }
  if (samples == 0)
    return;  // their mean is NaN
  const at::Tensor sum = value.dim() == 0 ? value * samples : value.sum();
  sum_ = sum_.defined() ? sum_ + sum : sum;
  samples_ += samples;
}

// One exchange of three numbers: the sum, the samples, those that could not be read.
double SampleMeans::over(ProcessGroup& group, int64_t dataset_size, int64_t bad_samples) {
  at::Tensor all = at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(group.device()));
  if (sum_.defined())
    all[0] = sum_;
  all[1] = samples_;
  all[2] = bad_samples;
  group.all_reduce(all);
  const at::Tensor here = all.cpu();
  const auto counted = here[1].item<double>();
  check_counted(dataset_size, counted, here[2].item<double>());
  return here[0].item<double>() / counted;
}

}  // namespace muster
