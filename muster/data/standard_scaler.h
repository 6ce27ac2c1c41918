// Standardises features: each gets the mean 0 and the deviation 1 of the data that the scaler was
// fitted to, as scikit-learn's StandardScaler. It is a module with buffers, so it is saved and
// loaded as models are, by itself or as the first layer of one.
//
//   muster::StandardScaler scaler(13);
//   scaler->fit(parts[0]);                                      // of the training part alone
//   auto loader = ctx.loader(scaler->transform(parts[0]), …);
//   torch::save(scaler, "scaler.pt");
//
//   muster::StandardScaler same(13);                            // in the program that predicts
//   torch::load(same, "scaler.pt");
//   auto prediction = net(same(features));
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <ostream>

#include "muster/base/tensors.h"
#include "muster/data/dataset.h"

namespace muster {

namespace datasets {

// The rows `begin` … `end` - 1.
Tensor rows_between(int64_t begin, int64_t end);

}  // namespace datasets

// A dataset of features and labels, as TensorDataset and its subsets.
template <class D>
concept HasFeatures = GivesBatches<D> && requires(const D& dataset, const at::Tensor& rows) {
  { dataset.get_batch(rows, true).features } -> std::convertible_to<at::Tensor>;
  { dataset.get_batch(rows, true).labels } -> std::convertible_to<at::Tensor>;
};

class StandardScalerImpl : public torch::nn::Cloneable<StandardScalerImpl> {
 public:
  // Throws: invalid_argument for fewer than 1 feature.
  explicit StandardScalerImpl(int64_t num_features);
  void reset() override;

  // Learns mean and deviation of `features`, and forgets what it knew. A feature that is the same
  // in all samples is divided by 1. Shapes: [N, num_features, ...]; or [N] if there is 1 feature.
  // Of [N, C, …] each channel is a feature. Throws: invalid_argument for another shape, or a value
  // that is NaN or infinite, with its place; failed_precondition for no sample. It then knows what
  // it knew.
  void fit(const at::Tensor& features);
  template <HasFeatures D>
  void fit(const D& dataset) {
    fit_rows(dataset.size(),
             [&](const at::Tensor& rows) { return dataset.get_batch(rows, false).features; });
  }
  // As fit(), beside what it knows already: for data that come batch by batch. The result is that
  // of all of them together. Over ctx.loader each rank sees its own samples: call reduce() then, or
  // the ranks train on data of different scales. Throws: also failed_precondition after reduce(),
  // which a clone and a saved scaler do not know of.
  void partial_fit(const at::Tensor& features);
  // Makes what each rank of a ProcessGroup has learnt that of all their samples together. Call it
  // once, after the last partial_fit(); a rank may have seen no sample. Collective: yes.
  template <class Group>
  void reduce(Group& group) {
    reduce_by([&](const at::Tensor& mine) {
      at::Tensor sum =
          mine.to(group.device(), mine.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
      group.all_reduce(sum);
      return sum.to(mine.device());
    });
    is_of_all_ranks_ = group.size() > 1;
  }

  // (features - mean) / deviation, in the type of floating-point features; others become float32.
  // Shapes: as fit(); the same as it was.
  // Throws: invalid_argument for another shape; failed_precondition if it was neither fitted nor
  // loaded.
  at::Tensor transform(const at::Tensor& features);
  // All samples of a dataset, in new memory.
  template <HasFeatures D>
  TensorDataset transform(const D& dataset) {
    const auto all = dataset.get_batch(datasets::rows_between(0, dataset.size()), false);
    return {transform(all.features), all.labels};
  }
  // The way back: of predictions of standardised labels.
  at::Tensor inverse_transform(const at::Tensor& features);
  // As transform().
  at::Tensor forward(const at::Tensor& features) { return transform(features); }

  // Shapes: [num_features] double.
  const at::Tensor& mean() const { return mean_; }
  // 1 for a feature that is the same in all samples.
  at::Tensor deviation() const;
  // Values of each feature that it was fitted to.
  int64_t samples() const { return samples_.item<int64_t>(); }

  void pretty_print(std::ostream& stream) const override;

 private:
  template <class Features>
  void fit_rows(int64_t size, const Features& features_of) {
    constexpr int64_t kRows = 4096;
    const Learnt before = forget();
    try {
      for (int64_t begin = 0; begin < size; begin += kRows)
        partial_fit(features_of(datasets::rows_between(begin, std::min(size, begin + kRows))));
      check_fitted();
    } catch (...) {
      put_back(before);
      throw;
    }
  }

  void reduce_by(const std::function<Tensor(const Tensor&)>& sum_over_ranks);

  struct Learnt {
    Tensor mean, variance, samples;
    bool is_of_all_ranks = false;
  };
  Learnt forget();
  void put_back(const Learnt& learnt);
  void check_shape(const Tensor& features) const;
  Tensor by_feature(const Tensor& features) const;
  void check_fitted();

  int64_t num_features_;
  Tensor mean_, variance_, samples_;  // buffers
  bool is_fitted_ = false;            // as seen last: a GPU is asked once
  bool is_of_all_ranks_ = false;      // since reduce()
};
TORCH_MODULE(StandardScaler);

}  // namespace muster
