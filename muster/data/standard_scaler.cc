// Means and variances, batch by batch, in double precision. Source: Chan, Golub, LeVeque, "Updating
// formulae and a pairwise algorithm for computing sample variances" (1979).
#include "muster/data/standard_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <ostream>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/data/as_double.h"

namespace muster {

namespace {

constexpr Refusal refuse_features{"standard scaler"};

// As a vector by feature: statistics of `features` are over all other dimensions.
Tensor along_features(const Tensor& statistic, const Tensor& features) {
  Int64s shape(features.dim(), 1);
  shape[features.dim() == 1 ? 0 : 1] = statistic.numel();
  return statistic.to(features.device(), features.scalar_type()).view(shape);
}

Tensor as_floating(const Tensor& features) {
  return features.is_floating_point() ? features : features.to(kFloat);
}

// [all but the feature, feature].
void check_finite(const Tensor& rows, int64_t of_sample) {
  const Tensor wrong = rows.isfinite().logical_not();
  if (!wrong.any().item<bool>())
    return;
  const Tensor place = wrong.nonzero()[0].cpu();
  const int64_t row = place[0].item<int64_t>(), feature = place[1].item<int64_t>();
  refuse_features("features that are finite",
                  cat(rows[row][feature].item<double>(),
                      " in feature ",
                      feature,
                      " of sample ",
                      row / of_sample),
                  "leave the sample out, or give the missing value a number");
}

}  // namespace

Tensor datasets::rows_between(int64_t begin, int64_t end) {
  return at::arange(begin, end, kLong);
}

StandardScalerImpl::StandardScalerImpl(int64_t num_features) : num_features_(num_features) {
  if (num_features < 1)
    refuse_features("at least 1 feature", cat(num_features), "pass features.size(1)");
  reset();
}

void StandardScalerImpl::reset() {
  mean_ = register_buffer("mean", at::zeros({num_features_}, kDouble));
  variance_ = register_buffer("variance", at::ones({num_features_}, kDouble));
  samples_ = register_buffer("samples", at::zeros({}, kLong));
  is_fitted_ = false;
  is_of_all_ranks_ = false;
}

void StandardScalerImpl::check_shape(const Tensor& features) const {
  const bool is_list = features.defined() && features.dim() == 1 && num_features_ == 1;
  const bool fits = features.defined() && features.dim() >= 2 && features.size(1) == num_features_;
  if (!is_list && !fits)
    refuse_features(
        cat("features of shape [N, ", num_features_, ", ...]"),
        features.defined() ? cat("[", sizes_text(features), "]") : "an undefined tensor",
        "make the scaler with that number of features");
}

// [all but the feature, feature], in double precision.
Tensor StandardScalerImpl::by_feature(const Tensor& features) const {
  check_shape(features);
  const Tensor rows = features.dim() == 1 ? features.unsqueeze(1) : features.movedim(1, -1);
  return rows.reshape({-1, num_features_}).to(kDouble);
}

void StandardScalerImpl::fit(const Tensor& features) {
  fit_rows(1, [&](const Tensor&) { return features; });
}

// The next reduce() would count what all ranks have learnt once for each of them.
void StandardScalerImpl::partial_fit(const Tensor& features) {
  if (is_of_all_ranks_)
    throw failed_precondition(
        "standard scaler: expected no partial_fit() after reduce(), got one beside the samples of "
        "all ranks; call reduce() once, after the last, or reset() to begin anew");
  const Tensor rows = by_feature(features).detach();
  if (rows.size(0) == 0)
    return;
  check_finite(rows, rows.size(0) / features.size(0));
  const auto [variance, mean] = at::var_mean(rows, at::IntArrayRef{0}, /*correction=*/0);
  // With counts of values, which are several of a sample where it has more dimensions.
  const Tensor before = samples_.to(kDouble);
  const double count = as_double(rows.size(0));
  const Tensor all = before + count;
  const Tensor apart = mean.to(mean_.device()) - mean_;
  const Tensor squares = variance.to(mean_.device()) * count + variance_ * before +
                         apart * apart * (before * count / all);
  mean_.add_(apart * (count / all));
  variance_.copy_(squares / all);
  samples_.add_(rows.size(0));
}

// Sums of numbers by rank, each weighted by its samples. The means come first: deviations from the
// common one keep the digits that sums of squares would lose.
void StandardScalerImpl::reduce_by(const std::function<Tensor(const Tensor&)>& sum_over_ranks) {
  const NoGradGuard no_grad;
  const Tensor mine = samples_.to(kDouble).clone();
  const Tensor all = sum_over_ranks(mine);
  const Tensor part = at::where(all.gt(0), mine / all, at::zeros_like(mine));
  const Tensor mean = sum_over_ranks(mean_ * part);
  const Tensor variance = sum_over_ranks((variance_ + (mean_ - mean).square()) * part);
  samples_.copy_(all);
  mean_.copy_(mean);
  variance_.copy_(at::where(all.gt(0), variance, at::ones_like(variance)));
}

StandardScalerImpl::Learnt StandardScalerImpl::forget() {
  Learnt before{mean_.clone(), variance_.clone(), samples_.clone(), is_of_all_ranks_};
  mean_.zero_();
  variance_.fill_(1);
  samples_.zero_();
  is_fitted_ = false;
  is_of_all_ranks_ = false;
  return before;
}

void StandardScalerImpl::put_back(const Learnt& learnt) {
  mean_.copy_(learnt.mean);
  variance_.copy_(learnt.variance);
  samples_.copy_(learnt.samples);
  is_of_all_ranks_ = learnt.is_of_all_ranks;
}

void StandardScalerImpl::check_fitted() {
  if (!is_fitted_)
    is_fitted_ = samples() > 0;
  if (!is_fitted_)
    throw failed_precondition(
        "standard scaler: expected one that was fitted or loaded, got one of no samples; "
        "call fit() with the training part, or load what was saved");
}

// Rounding leaves a constant feature a variance above 0. Source: scikit-learn's
// _is_constant_feature.
Tensor StandardScalerImpl::deviation() const {
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  const Tensor count = samples_.to(kDouble);
  const Tensor of_rounding = (count * mean_ * kEpsilon).square() + count * variance_ * kEpsilon;
  return at::where(variance_ <= of_rounding, at::ones_like(variance_), variance_.sqrt());
}

Tensor StandardScalerImpl::transform(const Tensor& features) {
  check_shape(features);
  check_fitted();
  const Tensor values = as_floating(features);
  return (values - along_features(mean_, values)) / along_features(deviation(), values);
}

Tensor StandardScalerImpl::inverse_transform(const Tensor& features) {
  check_shape(features);
  check_fitted();
  const Tensor values = as_floating(features);
  return values * along_features(deviation(), values) + along_features(mean_, values);
}

void StandardScalerImpl::pretty_print(std::ostream& stream) const {
  stream << "muster::StandardScaler(num_features=" << num_features_ << ")";
}

}  // namespace muster
