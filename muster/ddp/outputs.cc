// A script's result is a tree of values. Each value in it knows how to put another in its place: in
// the list, tuple or dictionary that holds it.
#include "muster/ddp/outputs.h"

#include <ATen/core/ivalue.h>

#include "muster/base/torch_names.h"

namespace muster::detail {

namespace {

using Replace = std::function<void(const IValue&)>;

void collect_from_value(const IValue& value, const Replace& replace, ForwardOutputs& found);

// Lists of tensors and of any values have one interface.
template <class List>
void collect_from_list(const List& list, ForwardOutputs& found) {
  using Element = typename List::value_type;
  for (const size_t i : indices_of(list)) {
    const auto put = [list, i](const IValue& other) {
      list.set(i, other.to<Element>());
    };
    collect_from_value(list.get(i), put, found);
  }
}

void collect_from_tuple(const c10::intrusive_ptr<c10::ivalue::Tuple>& tuple,
                        ForwardOutputs& found) {
  for (const size_t i : indices_of(tuple->elements())) {
    const auto put = [tuple, i](const IValue& other) {
      tuple->unsafeSetElement(i, other);
    };
    collect_from_value(tuple->elements()[i], put, found);
  }
}

void collect_from_dictionary(const c10::Dict<IValue, IValue>& dictionary, ForwardOutputs& found) {
  for (const auto& item : dictionary) {
    const auto put = [dictionary, key = item.key()](const IValue& other) {
      dictionary.insert_or_assign(key, other);
    };
    collect_from_value(item.value(), put, found);
  }
}

// `replace` puts another value in this one's place.
void collect_from_value(const IValue& value, const Replace& replace, ForwardOutputs& found) {
  if (value.isTensor()) {
    if (value.toTensor().defined())
      found.push_back({value.toTensor(), [replace](const Tensor& other) { replace(other); }});
  } else if (value.isTensorList()) {
    collect_from_list(value.toTensorList(), found);
  } else if (value.isList()) {
    collect_from_list(value.toList(), found);
  } else if (value.isTuple()) {
    collect_from_tuple(value.toTuple(), found);
  } else if (value.isGenericDict()) {
    collect_from_dictionary(value.toGenericDict(), found);
  }
}

}  // namespace

void collect_script_outputs(IValue& value, ForwardOutputs& found) {
  collect_from_value(value, [&value](const IValue& other) { value = other; }, found);
}

}  // namespace muster::detail
