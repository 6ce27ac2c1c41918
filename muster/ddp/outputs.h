// The tensors in the result of a forward: a tensor, any nesting of pairs, tuples, containers and
// optionals of tensors, and types whose member tensors() returns std::tie of theirs. Tensors in
// other types are not seen.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/tensors.h"

namespace muster {

struct ForwardOutput {
  Tensor tensor;
  // Puts another tensor in its place; empty if the result returns copies or constants.
  std::function<void(const Tensor&)> replace;
};
using ForwardOutputs = std::vector<ForwardOutput>;

namespace detail {

// The result of a scripted module: tensors in lists, tuples and dictionaries, which are references.
void collect_script_outputs(c10::IValue& value, ForwardOutputs& found);

// `lasts` says, here and below, that what `value` refers to lives as long as the forward's result.
// Such a value stays where it is if it is an lvalue, and can be replaced if it is no constant.
template <bool lasts, class T>
inline constexpr bool kStays = lasts && std::is_lvalue_reference_v<T>;
template <bool lasts, class T>
inline constexpr bool kReplaceable =
    kStays<lasts, T> && !std::is_const_v<std::remove_reference_t<T>>;

// The kinds of types that are looked into, in the order in which a type is tried for them.
template <class T>
concept TensorOutput = std::is_base_of_v<Tensor, std::remove_cvref_t<T>>;
template <class T>
concept ScriptOutput = std::is_same_v<std::remove_cvref_t<T>, c10::IValue>;
template <class T>
concept TensorList = std::is_same_v<std::remove_cvref_t<T>, c10::List<Tensor>>;
template <class T>
concept HasTensors = requires(T& value) { value.tensors(); };
template <class T>
concept TupleOutput = requires { std::tuple_size<std::remove_cvref_t<T>>::value; };
template <class T>
concept OptionalOutput = requires(T& value) { value.has_value(), *value; };
template <class T>
concept RangeOfOutputs = !std::is_convertible_v<T, std::string_view> &&
                         requires(T& value) { value.begin() != value.end(); };

template <bool lasts, class T>
void collect_outputs(T&& value, ForwardOutputs& found);

template <bool lasts, class T>
void collect_tensor(T&& value, ForwardOutputs& found) {
  if (!value.defined())
    return;
  found.push_back({value, {}});
  if constexpr (kReplaceable<lasts, T>) {
    found.back().replace = [&value](const Tensor& other) {
      static_cast<Tensor&>(value) = other;
    };
  }
}

// A list is a reference: its copy in the function has the same tensors.
inline void collect_list(const c10::List<Tensor>& list, ForwardOutputs& found) {
  for (const size_t i : indices_of(list))
    found.push_back({list.get(i), [list, i](const Tensor& other) { list.set(i, other); }});
}

template <bool lasts, class T>
void collect_tuple(T&& value, ForwardOutputs& found) {
  const auto collect = [&]<class Item>(Item&& item) {
    collect_outputs<kStays<lasts, Item>>(std::forward<Item>(item), found);
  };
  std::apply([&]<class... Item>(Item&&... item) { (collect(std::forward<Item>(item)), ...); },
             std::forward<T>(value));
}

template <bool lasts, class T>
void collect_outputs(T&& value, ForwardOutputs& found) {
  if constexpr (TensorOutput<T>) {
    collect_tensor<lasts>(std::forward<T>(value), found);
  } else if constexpr (ScriptOutput<T>) {
    if constexpr (kReplaceable<lasts, T>)
      collect_script_outputs(value, found);
  } else if constexpr (TensorList<T>) {
    collect_list(value, found);
  } else if constexpr (std::is_convertible_v<T, Tensor>) {
    collect_outputs<false>(Tensor(value), found);
  } else if constexpr (HasTensors<T>) {
    collect_outputs<true>(value.tensors(), found);
  } else if constexpr (TupleOutput<T>) {
    collect_tuple<lasts>(std::forward<T>(value), found);
  } else if constexpr (OptionalOutput<T>) {
    if (value.has_value())
      collect_outputs<kStays<lasts, T>>(*value, found);
  } else if constexpr (RangeOfOutputs<T>) {
    for (auto&& item : value)
      collect_outputs<kStays<lasts, T>>(std::forward<decltype(item)>(item), found);
  }
}

}  // namespace detail

template <class Result>
ForwardOutputs outputs_of(Result& result) {
  ForwardOutputs found;
  detail::collect_outputs<true>(result, found);
  return found;
}

}  // namespace muster
