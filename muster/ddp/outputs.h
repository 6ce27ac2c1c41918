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

namespace muster {

struct ForwardOutput {
  at::Tensor tensor;
  // Puts another tensor in its place; empty if the result returns copies or constants.
  std::function<void(const at::Tensor&)> replace;
};

namespace detail {

// The result of a scripted module: tensors in lists, tuples and dictionaries, which are references.
void collect_script_outputs(c10::IValue& value, std::vector<ForwardOutput>& found);

// `lasts`: what `value` refers to lives as long as the forward's result.
template <bool lasts, class T>
void collect_outputs(T&& value, std::vector<ForwardOutput>& found) {
  using Value = std::remove_cvref_t<T>;
  constexpr bool stays = lasts && std::is_lvalue_reference_v<T>;
  if constexpr (std::is_base_of_v<at::Tensor, Value>) {
    if (!value.defined())
      return;
    found.push_back({value, {}});
    if constexpr (stays && !std::is_const_v<std::remove_reference_t<T>>) {
      found.back().replace = [&value](const at::Tensor& other) {
        static_cast<at::Tensor&>(value) = other;
      };
    }
  } else if constexpr (std::is_same_v<Value, c10::IValue>) {
    if constexpr (stays && !std::is_const_v<std::remove_reference_t<T>>) {
      collect_script_outputs(value, found);
    }
  } else if constexpr (std::is_same_v<Value, c10::List<at::Tensor>>) {
    for (size_t i = 0; i < value.size(); ++i) {  // a list is a reference
      found.push_back(
          {value.get(i), [list = value, i](const at::Tensor& other) { list.set(i, other); }});
    }
  } else if constexpr (std::is_convertible_v<T, at::Tensor>) {
    collect_outputs<false>(at::Tensor(value), found);
  } else if constexpr (requires { value.tensors(); }) {
    collect_outputs<true>(value.tensors(), found);
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    const auto collect = [&]<class Item>(Item&& item) {
      constexpr bool item_lasts = lasts && std::is_lvalue_reference_v<Item>;
      collect_outputs<item_lasts>(std::forward<Item>(item), found);
    };
    std::apply([&]<class... Item>(Item&&... item) { (collect(std::forward<Item>(item)), ...); },
               std::forward<T>(value));
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value.has_value())
      collect_outputs<stays>(*value, found);
  } else if constexpr (!std::is_convertible_v<T, std::string_view> &&
                       requires { value.begin() != value.end(); }) {
    for (auto&& item : value)
      collect_outputs<stays>(std::forward<decltype(item)>(item), found);
  }
}

}  // namespace detail

template <class Result>
std::vector<ForwardOutput> outputs_of(Result& result) {
  std::vector<ForwardOutput> found;
  detail::collect_outputs<true>(result, found);
  return found;
}

}  // namespace muster
