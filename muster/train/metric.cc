// Sums are kept on the device where they are, in double, which is exact for counts. Labels that are
// ignored are masked there, so that adding never waits. Every sum is made anew: a copy of a metric
// shares the tensor, and not what is added later.
#include "muster/train/metric.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <mutex>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/train/device_copy.h"

namespace muster {

namespace {

template <class... Parts>
[[noreturn]] void refuse_addition(const std::string& owner, const Parts&... parts) {
  throw invalid_argument(owner, ": expected ", parts...);
}

// Throws: invalid_argument unless the tensor has one element.
void check_is_number(const char* name, const Tensor& tensor) {
  if (tensor.defined() && tensor.numel() == 1)
    return;
  refuse_addition(
      "mean",
      "a ",
      name,
      " of one element, got ",
      tensor.defined() ? cat("shape [", sizes_text(tensor), "]") : "an undefined tensor",
      "; add values without a count, or their mean");
}

Tensor pair_of(const Tensor& sum, const Tensor& count) {
  return at::stack({sum.reshape({}), count.reshape({})});
}

Tensor number_like(double number, const Tensor& tensor) {
  return at::full({}, number, at::TensorOptions(kDouble).device(tensor.device()));
}

// Which labels count.
Tensor counted(const Tensor& labels, const std::optional<int64_t>& ignore_index) {
  return ignore_index ? labels.ne(*ignore_index) : at::ones_like(labels, kBool);
}

constexpr int64_t kNoClass = std::numeric_limits<int64_t>::min();

// The class of the largest logit; kNoClass where a logit is NaN, which argmax takes for the
// largest.
Tensor likeliest_classes(const Tensor& logits) {
  const Tensor best = logits.argmax(-1, /*keepdim=*/true);
  return best.masked_fill(logits.gather(-1, best).isnan(), kNoClass).squeeze(-1);
}

// A model that has become NaN in an evaluation need not end the training.
void warn_of_nan(double predictions) {
  static std::once_flag told;
  std::call_once(told, [&] {
    log_warning("confusion matrix: expected logits that are numbers, got NaN for ",
                predictions,
                " labels on all ranks, which are left out; see where the model becomes NaN");
  });
}

// The class of each label: that of the largest logit where logits are given.
Tensor predicted_classes(const Tensor& predicted, const Tensor& labels, int64_t classes) {
  const bool are_classes = predicted.sizes() == labels.sizes() && !predicted.is_floating_point();
  if (are_classes)
    return predicted;
  const int64_t dims = labels.dim();
  const bool are_logits = predicted.dim() == dims + 1 && predicted.size(-1) == classes &&
                          predicted.sizes().slice(0, dims) == labels.sizes();
  if (are_logits)
    return likeliest_classes(predicted);
  refuse_addition("confusion matrix",
                  "logits […, ",
                  classes,
                  "] or whole numbers […], and labels […], got ",
                  toString(predicted.scalar_type()),
                  " [",
                  sizes_text(predicted),
                  "] and [",
                  sizes_text(labels),
                  "]; move the classes to the end, as by logits.movedim(1, -1)");
}

}  // namespace

void SumMetric::reset() {
  here_ = Tensor();
  of_all_ = Tensor();
}

void SumMetric::add_sums(const Tensor& more) {
  if (more.sizes() != at::IntArrayRef(shape_)) {
    refuse_addition("metric",
                    "sums of shape [",
                    join(shape_, ", "),
                    "], got [",
                    sizes_text(more),
                    "]; give the constructor their shape");
  }
  const NoGradGuard no_grad;
  const Tensor value = more.detach().to(kDouble);
  here_ = here_.defined() ? here_ + copied_to(here_.device(), value) : value;
  of_all_ = Tensor();
}

// A rank that has added nothing has zeros.
void SumMetric::reduce(ProcessGroup& group) {
  const auto options = at::TensorOptions(kDouble).device(group.device());
  Tensor all = at::zeros(shape_, options);
  if (here_.defined())
    all.copy_(here_);
  group.all_reduce(all);
  of_all_ = all.cpu();
}

Tensor SumMetric::sums() const {
  if (of_all_.defined())
    return of_all_;
  return here_.defined() ? here_.cpu() : at::zeros(shape_, kDouble);
}

double SumMetric::ratio() const {
  const Tensor pair = sums();
  return pair[0].item<double>() / pair[1].item<double>();
}

void Mean::add(const Tensor& values) {
  const NoGradGuard no_grad;
  const Tensor sum = values.detach().to(kDouble).sum();
  add_sums(pair_of(sum, number_like(as_number(values.numel()), sum)));
}

// A mean over nothing is NaN, which must not be multiplied by 0.
void Mean::add(const Tensor& mean, const Tensor& count) {
  check_is_number("mean", mean);
  check_is_number("count", count);
  const NoGradGuard no_grad;
  const Tensor value = mean.detach().to(kDouble).reshape({});
  const Tensor weight = copied_to(mean.device(), count.detach()).to(kDouble).reshape({});
  add_sums(pair_of(at::where(weight.gt(0), value * weight, at::zeros_like(value)), weight));
}

void Mean::add(const Tensor& mean, double count) {
  if (!(count >= 0))
    refuse_addition("mean", "a count of 0 or more, got ", count, "; give that of the values");
  check_is_number("mean", mean);
  add(mean, number_like(count, mean));
}

double Mean::count() const {
  return sums()[1].item<double>();
}

// The sums: hits, labels that count, and those of them that are no class.
Accuracy::Accuracy(const AccuracyOptions& options) : SumMetric({3}), options_(options) {
  if (options.top < 1)
    refuse_addition("accuracy", "top of 1 or more, got ", options.top, "; 1 is the default");
}

void Accuracy::add(const Tensor& logits, const Tensor& labels) {
  const NoGradGuard no_grad;
  const Tensor hits = label_hits("accuracy", logits, labels, options_.top);
  const Tensor counts = counted(labels, options_.ignore_index);
  const Tensor outside = labels.lt(0).logical_or(labels.ge(logits.size(-1)));
  add_sums(
      at::stack({hits.logical_and(counts).sum(), counts.sum(), outside.logical_and(counts).sum()})
          .to(kDouble));
}

void Accuracy::reduce(ProcessGroup& group) {
  SumMetric::reduce(group);
  const auto outside = sums()[2].item<double>();
  if (outside > 0)
    refuse_addition("accuracy",
                    "labels that are classes, from 0 on, got ",
                    outside,
                    " others on all ranks; number the classes from 0, or give the ignore_index");
}

double Accuracy::count() const {
  return sums()[1].item<double>();
}

// Behind the matrix one sum counts what is out of range, and one the predictions that are NaN.
ConfusionMatrix::ConfusionMatrix(int64_t classes, std::optional<int64_t> ignore_index)
    : SumMetric({classes * classes + 2}), classes_(classes), ignore_index_(ignore_index) {
  if (classes < 1)
    refuse_addition("confusion matrix", "1 class or more, got ", classes, "; give their number");
}

void ConfusionMatrix::add(const Tensor& predicted, const Tensor& labels) {
  const NoGradGuard no_grad;
  const auto in_range = [&](const Tensor& classes) {
    return classes.ge(0).logical_and(classes.lt(classes_));
  };
  const Tensor columns = predicted_classes(predicted, labels, classes_).reshape({-1}).to(kLong);
  const Tensor rows = labels.reshape({-1}).to(kLong);
  const Tensor counts = counted(rows, ignore_index_);
  const int64_t outside = classes_ * classes_;
  const Tensor is_nan = in_range(rows).logical_and(columns.eq(kNoClass));
  const Tensor fits = in_range(rows).logical_and(in_range(columns));
  const Tensor place = at::where(fits, rows * classes_ + columns, is_nan + outside);
  Tensor sums = at::zeros({outside + 2}, counts.options().dtype(kDouble));
  add_sums(sums.scatter_add_(0, place, counts.to(kDouble)));
}

void ConfusionMatrix::reduce(ProcessGroup& group) {
  SumMetric::reduce(group);
  const auto outside = sums()[-2].item<double>(), unknown = sums()[-1].item<double>();
  if (group.rank() == 0 && unknown > 0)
    warn_of_nan(unknown);
  if (outside == 0)
    return;
  refuse_addition("confusion matrix",
                  "labels and predictions from 0 to ",
                  classes_ - 1,
                  ", got ",
                  outside,
                  " pairs with others on all ranks; give more classes, or the ignore_index");
}

Tensor ConfusionMatrix::value() const {
  return sums().slice(0, 0, classes_ * classes_).reshape({classes_, classes_}).to(kLong);
}

Tensor label_hits(const std::string& owner, const Tensor& logits, const Tensor& labels, int64_t k) {
  const int64_t dims = logits.dim() - 1;  // those of the labels
  const bool fits = dims >= 0 && logits.sizes().slice(0, dims) == labels.sizes();
  if (!fits || k < 1 || k > logits.size(-1)) {
    refuse_addition(owner,
                    "logits […, classes], labels […] and k from 1 to the classes, got [",
                    sizes_text(logits),
                    "], [",
                    sizes_text(labels),
                    "] and ",
                    k,
                    "; move the classes to the end, as by logits.movedim(1, -1)");
  }
  if (logits.size(-1) < 2)
    refuse_addition(owner,
                    "logits of 2 classes or more, got [",
                    sizes_text(logits),
                    "], of which the one class is always the likeliest; with one logit for two "
                    "classes take Mean, and add (logits.squeeze(-1) > 0).eq(labels)");
  if (k == 1)
    return likeliest_classes(logits).eq(labels);
  const auto [largest, classes] = logits.topk(k, -1);
  const Tensor has_nan = largest.select(-1, 0).isnan();  // topk, too, puts it first
  return classes.eq(labels.unsqueeze(-1)).any(-1).logical_and(has_nan.logical_not());
}

}  // namespace muster
