// Collates examples into a batch. Tensors are stacked, numbers become a tensor, lists are
// concatenated; tuples, arrays and plain structs are collated field by field. Padded and Packed are
// for tensors of different lengths. A type with a `static T collate(std::vector<E>)` collates in
// its own way.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/base/never.h"
#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/data/fields.h"

namespace muster {

// Shapes: each [...], all alike; the result [B, ...].
// Throws: invalid_argument naming the first two that differ in shape or type.
at::Tensor stacked(const Tensors& tensors);
// The same of tensors that are given up: those that were made at their place (batch_places.h) are
// not copied.
at::Tensor stacked(Tensors&& tensors);

// Tensors of different lengths as a rectangle, padded with zeros at the end.
struct Padded {
  at::Tensor values;   // of an example [L, ...]; of a batch [B, longest L, ...]
  at::Tensor lengths;  // undefined; of a batch [B] int64
  static Padded collate(const std::vector<Padded>& examples);
};

// Shapes: each [L, ...], alike but for L; the result [B, longest L, ...], and lengths [B] int64.
// Throws: invalid_argument naming the first two that differ, and for a filling that their type
// cannot hold.
Padded padded_with(int64_t filling, const Tensors& examples);

// The same with another number in the place of zeros. PaddedWith<-100> is for labels:
// cross_entropy_loss passes over -100, while 0 is a class.
template <int64_t Filling>
struct PaddedWith {
  at::Tensor values;   // as of Padded
  at::Tensor lengths;  // as of Padded
  static PaddedWith collate(const std::vector<PaddedWith>& examples) {
    const Padded padded = padded_with(
        Filling, mapped(examples, [](const PaddedWith& example) { return example.values; }));
    return {.values = padded.values, .lengths = padded.lengths};
  }
};

// Tensors of different lengths, concatenated without padding.
struct Packed {
  at::Tensor values;   // of an example [L, ...]; of a batch [sum of L, ...]
  at::Tensor offsets;  // undefined; of a batch [B + 1] int64: where each starts, and the end
  static Packed collate(const std::vector<Packed>& examples);
};

template <class E>
concept CollatesItself = requires(std::vector<E> examples) { E::collate(std::move(examples)); };

namespace collation {

template <class T>
inline constexpr bool kTuple = requires { std::tuple_size<T>::value; };  // pairs and arrays, too

template <class>
inline constexpr bool kVector = false;
template <class T>
inline constexpr bool kVector<std::vector<T>> = true;

}  // namespace collation

template <class E>
auto collate(std::vector<E> examples);  // NOLINT(performance-unnecessary-value-param)

// Whether a batch is made of tensors, with nothing beside them; in lists, too.
template <class B, bool kInLists = true>
constexpr bool is_of_tensors() {
  const auto all = []<class... Part>(std::type_identity<std::tuple<Part...>>) {
    return (is_of_tensors<std::remove_cvref_t<Part>, kInLists>() && ...);
  };
  if constexpr (std::is_same_v<B, at::Tensor>) {
    return true;
  } else if constexpr (kInLists && collation::kVector<B>) {
    return is_of_tensors<typename B::value_type>();
  } else if constexpr (collation::kTuple<B>) {
    return all(std::type_identity<decltype(std::tuple_cat(std::declval<B>()))>{});
  } else if constexpr (PlainStruct<B>) {
    return all(std::type_identity<decltype(fields_of(std::declval<B&>()))>{});
  } else {
    return false;
  }
}

// The batch type of an example type E.
template <class E>
using Collated = decltype(collate(std::declval<std::vector<E>>()));

namespace collation {

template <class E, size_t I>
auto element(std::vector<E>& examples) {
  std::vector<std::tuple_element_t<I, E>> elements =
      mapped(examples, [&](E& example) { return std::move(std::get<I>(example)); });
  return collate(std::move(elements));
}

template <class E, size_t... I>
auto elements(std::vector<E>& examples, std::index_sequence<I...>) {
  return std::make_tuple(element<E, I>(examples)...);
}

template <class E, size_t I>
using FieldAt =
    std::remove_reference_t<std::tuple_element_t<I, decltype(fields_of(std::declval<E&>()))>>;

template <class Field, size_t I, class E>
void join_field(Field& joined, std::vector<E>& examples) {
  std::vector<Field> values =
      mapped(examples, [&](E& example) { return std::move(std::get<I>(fields_of(example))); });
  joined = collate(std::move(values));
}

// Fields are joined only where all can be: the compiler then has one error to tell.
template <class E, size_t... I>
E fieldwise(std::vector<E>& examples, std::index_sequence<I...>) {
  constexpr bool joins = (std::is_same_v<Collated<FieldAt<E, I>>, FieldAt<E, I>> && ...);
  static_assert(joins,
                "a struct's fields must be tensors, lists, Padded, Packed or structs of these: "
                "make numbers tensors (torch::tensor(7)), or give the struct a static collate()");
  E joined{};
  if constexpr (joins) {
    auto fields = fields_of(joined);
    (join_field<FieldAt<E, I>, I>(std::get<I>(fields), examples), ...);
  }
  return joined;
}

}  // namespace collation

// Shapes: as described at the top of the file. `examples` must not be empty; most kinds are moved
// out of it.
template <class E>
auto collate(std::vector<E> examples) {  // NOLINT(performance-unnecessary-value-param)
  if constexpr (CollatesItself<E>) {
    return E::collate(std::move(examples));
  } else if constexpr (std::is_same_v<E, at::Tensor>) {
    return stacked(std::move(examples));
  } else if constexpr (std::is_same_v<E, float>) {
    return at::tensor(examples, at::kFloat);
  } else if constexpr (std::floating_point<E>) {
    return at::tensor(std::vector<double>(examples.begin(), examples.end()), at::kDouble);
  } else if constexpr (std::integral<E>) {
    return at::tensor(std::vector<int64_t>(examples.begin(), examples.end()), at::kLong);
  } else if constexpr (collation::kVector<E>) {
    E joined;
    for (E& list : examples)
      joined.insert(
          joined.end(), std::make_move_iterator(list.begin()), std::make_move_iterator(list.end()));
    return joined;
  } else if constexpr (collation::kTuple<E>) {
    return collation::elements(examples, std::make_index_sequence<std::tuple_size_v<E>>{});
  } else if constexpr (PlainStruct<E>) {
    return collation::fieldwise(examples, std::make_index_sequence<fields::count<E>()>{});
  } else {
    static_assert(kNever<E>, "no batch can be made of this type: give it a static collate()");
  }
}

// While it lives, tensors that this thread collates go to page-locked memory, from which a GPU
// copies at full speed; numbers do not, nor what a type's own collate() makes without stacked().
// LibTorch keeps that memory for the next batches, so only the first ones lock new pages.
class PinnedCollation : NoCopy {
 public:
  explicit PinnedCollation(bool pinned);
  ~PinnedCollation();

 private:
  bool before_;
};

// Calls `change` with each tensor of a batch, and skips everything else (text, numbers).
template <class B, class F>
void for_each_tensor(B& batch, const F& change) {
  if constexpr (std::is_same_v<B, at::Tensor>) {
    if (batch.defined())
      change(batch);
  } else if constexpr (collation::kVector<B>) {
    for (auto& element : batch)
      for_each_tensor(element, change);
  } else if constexpr (collation::kTuple<B>) {
    std::apply([&](auto&... element) { (for_each_tensor(element, change), ...); }, batch);
  } else if constexpr (PlainStruct<B>) {
    std::apply([&](auto&... field) { (for_each_tensor(field, change), ...); }, fields_of(batch));
  }
}

}  // namespace muster
