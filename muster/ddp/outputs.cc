#include "muster/ddp/outputs.h"

#include <ATen/core/ivalue.h>

namespace muster::detail {

namespace {

using Replace = std::function<void(const c10::IValue&)>;

void collect_from_value(const c10::IValue& value,
                        const Replace& replace,
                        std::vector<ForwardOutput>& found) {
  if (value.isTensor()) {
    if (!value.toTensor().defined())
      return;
    found.push_back({value.toTensor(), [replace](const at::Tensor& other) { replace(other); }});
  } else if (value.isTensorList()) {
    auto list = value.toTensorList();
    for (size_t i = 0; i < list.size(); ++i)
      collect_from_value(
          list.get(i),
          [list, i](const c10::IValue& other) { list.set(i, other.toTensor()); },
          found);
  } else if (value.isList()) {
    auto list = value.toList();
    for (size_t i = 0; i < list.size(); ++i)
      collect_from_value(
          list.get(i), [list, i](const c10::IValue& other) { list.set(i, other); }, found);
  } else if (value.isTuple()) {
    const auto tuple = value.toTuple();
    for (size_t i = 0; i < tuple->elements().size(); ++i) {
      collect_from_value(
          tuple->elements()[i],
          [tuple, i](const c10::IValue& other) { tuple->unsafeSetElement(i, other); },
          found);
    }
  } else if (value.isGenericDict()) {
    auto dict = value.toGenericDict();
    for (const auto& item : dict) {
      collect_from_value(
          item.value(),
          [dict, key = item.key()](const c10::IValue& other) { dict.insert_or_assign(key, other); },
          found);
    }
  }
}

}  // namespace

void collect_script_outputs(c10::IValue& value, std::vector<ForwardOutput>& found) {
  collect_from_value(value, [&value](const c10::IValue& other) { value = other; }, found);
}

}  // namespace muster::detail
