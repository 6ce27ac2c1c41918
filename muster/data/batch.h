// A batch: the examples' tensors joined, and what a training step has to know of it.
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <tuple>
#include <utility>

namespace muster {

// What a batch's mean loss is multiplied with. It knows whether somebody has read it, and a loader stops a
// training loop that forgets it (DataLoaderOptions::check_weight).
class StepWeight {
 public:
  StepWeight(double value = 1)
      : value_(value), read_(std::make_shared<bool>(false)) {}  // NOLINT: it is a number
  operator double() const { return read(); }                    // NOLINT(google-explicit-constructor)
  operator c10::Scalar() const { return read(); }  // NOLINT(google-explicit-constructor): tensor * weight
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
  std::shared_ptr<bool> read_;  // of all copies
};

// `Data` is what collate.h makes of the examples: a struct's fields are the batch's (batch.pixels), a tensor
// can be given to a model, and of a tuple std::get<0>(batch) and auto& [x, y] = batch.
template <class Data>
concept HasBatchsNames = requires(Data data) {
  data.weight;
}
|| requires(Data data) {
  data.last;
}
|| requires(Data data) {
  data.samples;
};

template <class Data>
struct Batch : Data {
  static_assert(!HasBatchsNames<Data>,
                "weight, last and samples are a batch's own: give the fields of the example other names");

  // What mean losses are multiplied with, so that the gradients of a step, averaged over the ranks, are those
  // of the joined batch: this batch's part of the samples that all ranks use in the step, times the ranks. 1
  // where every batch of a step is as large.
  StepWeight weight;
  bool last = true;  // of its step: reduce gradients in this backward, and step after it
  int64_t samples = 0;

  int64_t size() const { return samples; }
  // Of a tensor: size(0).
  template <class... Dimension>
  requires(sizeof...(Dimension) > 0) int64_t size(Dimension... dimension)
  const { return Data::size(dimension...); }
};

}  // namespace muster

template <class... Ts>
struct std::tuple_size<muster::Batch<std::tuple<Ts...>>> : std::tuple_size<std::tuple<Ts...>> {};
template <size_t I, class... Ts>
struct std::tuple_element<I, muster::Batch<std::tuple<Ts...>>> : std::tuple_element<I, std::tuple<Ts...>> {};
