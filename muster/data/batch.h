// A batch: the collated examples, and what a training step must know about them.
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <tuple>
#include <utility>

#include "muster/base/lists.h"

namespace muster {

// The factor for a batch's mean loss. It records whether it was read, so that a loader can stop a
// training loop that forgets it (DataLoaderOptions::check_weight).
class StepWeight {
 public:
  StepWeight(double value = 1)
      : value_(value), read_(std::make_shared<bool>(false)) {}  // NOLINT: it is a number
  operator double() const { return read(); }  // NOLINT(google-explicit-constructor)
  operator c10::Scalar() const {
    return read();
  }  // NOLINT(google-explicit-constructor): tensor * weight
  bool is_read() const { return *read_; }
  double unread() const { return value_; }
  friend std::ostream& operator<<(std::ostream& out, const StepWeight& weight) {
    return out << weight.value_;
  }

 private:
  double read() const {
    *read_ = true;
    return value_;
  }
  double value_;
  std::shared_ptr<bool> read_;  // shared by all copies
};

// `Data` is what collate.h makes of the examples. A struct's fields become the batch's
// (batch.pixels), a tensor batch can be passed to a model, and a tuple allows std::get<0>(batch)
// and auto& [x, y] = batch.
template <class Data>
concept HasBatchsNames = requires(Data data) { data.weight; } || requires(Data data) {
  data.last;
} || requires(Data data) { data.samples; } || requires(Data data) { data.sample_indices; };

template <class Data>
struct Batch : Data {
  static_assert(!HasBatchsNames<Data>,
                "weight, last, samples and sample_indices are a batch's own: give the fields of "
                "the example other names");

  // Multiply the mean loss by it; the step's gradients, averaged over the ranks, are then those of
  // the joined batch. It is this batch's fraction of the samples that all ranks use in the step,
  // times the number of ranks. It is 1 if all batches of a step have the same size.
  StepWeight weight;
  bool last = true;  // of its step: reduce gradients in this backward, then take the optimizer step
  int64_t samples = 0;
  // Which samples of the dataset they are, in the batch's order. Empty for a stream, whose examples
  // have no numbers.
  Int64s sample_indices{};

  int64_t size() const { return samples; }
  // Of a tensor: size(0).
  template <class... Dimension>
    requires(sizeof...(Dimension) > 0)
  int64_t size(Dimension... dimension) const {
    return Data::size(dimension...);
  }
};

}  // namespace muster

template <class... Ts>
struct std::tuple_size<muster::Batch<std::tuple<Ts...>>> : std::tuple_size<std::tuple<Ts...>> {};
template <size_t I, class... Ts>
struct std::tuple_element<I, muster::Batch<std::tuple<Ts...>>>
    : std::tuple_element<I, std::tuple<Ts...>> {};
