// Metrics of an evaluation: values that are filled batch by batch, and then combined over the
// ranks.
//
//   muster::Mean loss;
//   muster::Accuracy top5({.top = 5});
//   muster::evaluate(ctx, net, held_out, [&](auto& net, const auto& batch) {
//     const auto logits = net(batch.features);
//     loss.add(torch::cross_entropy_loss(logits, batch.labels), batch.samples);
//     top5.add(logits, batch.labels);
//   }, loss, top5);
//
// A metric of your own derives from SumMetric if it is a function of sums over samples, as most
// are, from ConfusionMatrix if it is one of that (IoU, F1), and otherwise from Metric.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// A value: what is added to a copy does not change the original, so no tensor is changed in place.
class Metric {
 public:
  virtual ~Metric() = default;
  virtual void reset() = 0;
  // Afterwards the metric's value is that of all ranks, which may have added nothing. Collective:
  // yes.
  virtual void reduce(ProcessGroup& group) = 0;

 protected:
  Metric() = default;
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;
};

class SumMetric : public Metric {
 public:
  void reset() override;
  void reduce(ProcessGroup& group) override;

 protected:
  // Shapes: of the sums.
  explicit SumMetric(std::vector<int64_t> shape) : shape_(std::move(shape)) {}

  // Adding never waits for the device. Shapes: as the sums. Throws: invalid_argument for another
  // one.
  void add_sums(const at::Tensor& more);
  // In double on the CPU: of all ranks after reduce(), of this one before. Blocking: before
  // reduce(), for the device.
  at::Tensor sums() const;
  double ratio() const;  // of the first sum to the second

 private:
  std::vector<int64_t> shape_;
  at::Tensor here_;  // on the device; undefined: nothing was added
  at::Tensor of_all_;
};

// A mean over values, such as a loss.
class Mean : public SumMetric {
 public:
  Mean() : SumMetric({2}) {}

  // Shapes: any; every element is a value. So the mean loss of a batch is one value, and that of a
  // short last batch weighs as much as the others': give it with its count instead.
  void add(const at::Tensor& values);
  // Adds a mean over `count` values, such as a loss over the labels that are not ignored: then
  // `count` is labels.ne(ignored).sum(). Over none it adds nothing, even if it is NaN. Shapes: one
  // element each. Throws: invalid_argument for another shape or a negative count.
  void add(const at::Tensor& mean, const at::Tensor& count);
  void add(const at::Tensor& mean, double count);

  double value() const { return ratio(); }  // NaN without values
  double count() const;
};

struct AccuracyOptions {
  int64_t top = 1;  // the label is right among so many likeliest classes
  // Labels with this value do not count.
  std::optional<int64_t> ignore_index{};
};

// The fraction of labels that are among the likeliest classes. Where a logit is NaN none is.
class Accuracy : public SumMetric {
 public:
  // Throws: invalid_argument for a `top` below 1.
  explicit Accuracy(const AccuracyOptions& options = {});

  // Shapes: logits […, classes], labels […]. Throws: invalid_argument for others, and for fewer
  // classes than `top` or 2.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  // Throws: also invalid_argument, on every rank, if labels were no class.
  void reduce(ProcessGroup& group) override;

  double value() const { return ratio(); }  // NaN without labels
  double count() const;                     // of labels that are not ignored

 private:
  AccuracyOptions options_;
};

// Counts how often each class was taken for each other.
class ConfusionMatrix : public SumMetric {
 public:
  // Throws: invalid_argument for less than 1 class.
  explicit ConfusionMatrix(int64_t classes, std::optional<int64_t> ignore_index = {});

  // `predicted` has logits or classes. Shapes: logits […, classes], classes […], labels […].
  // Throws: invalid_argument for others.
  void add(const at::Tensor& predicted, const at::Tensor& labels);
  // Leaves out labels of logits that are NaN, and warns once. Throws: also invalid_argument, on
  // every rank, if classes were out of range.
  void reduce(ProcessGroup& group) override;

  // A row for each label, a column for each prediction. Shapes: [classes, classes] int64, on the
  // CPU.
  at::Tensor value() const;

 private:
  int64_t classes_;
  std::optional<int64_t> ignore_index_;
};

// Whether each label is among the k likeliest classes. Where a logit is NaN none is. Shapes: logits
// […, classes], labels […]. Throws: invalid_argument in the name of `owner` for others, for a k
// that is not from 1 to the classes, and for less than 2 classes.
at::Tensor label_hits(const std::string& owner,
                      const at::Tensor& logits,
                      const at::Tensor& labels,
                      int64_t k);

}  // namespace muster
