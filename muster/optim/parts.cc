// Marks are counted by the tensor's address. A weak pointer beside it tells whether the tensor
// still lives there, or the address is another tensor's by now.
#include "muster/optim/parts.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"

namespace muster::optim {

namespace {

class MarkedTensors {
 public:
  void mark(const Tensors& tensors, const Ints& numbers = {}) {
    const Lock lock(mutex_);
    std::erase_if(marks_, [](const auto& entry) { return entry.second.tensor.expired(); });
    for (const Tensor& tensor : tensors) {
      const c10::weak_intrusive_ptr<TensorImpl> weak(tensor.getIntrusivePtr());
      const auto mark = marks_.try_emplace(tensor.unsafeGetTensorImpl(), Mark{weak}).first;
      ++mark->second.count;
      mark->second.numbers = numbers;
    }
  }

  void unmark(const Tensors& tensors) {
    const Lock lock(mutex_);
    for (const Tensor& tensor : tensors) {
      const auto found = marks_.find(tensor.unsafeGetTensorImpl());
      if (found != marks_.end() && --found->second.count == 0)
        marks_.erase(found);
    }
  }

  bool has(const Tensor& tensor) { return count_of(tensor) > 0; }
  int count_of(const Tensor& tensor) { return of(tensor, &Mark::count); }
  Ints numbers_of(const Tensor& tensor) { return of(tensor, &Mark::numbers); }

 private:
  struct Mark {
    c10::weak_intrusive_ptr<TensorImpl> tensor;
    int count = 0;
    Ints numbers{};  // of ranks
  };

  // A tensor without a mark has none of what a mark says.
  template <class Value>
  Value of(const Tensor& tensor, Value Mark::* value) {
    const Lock lock(mutex_);
    const auto found = marks_.find(tensor.unsafeGetTensorImpl());
    const bool is_marked = found != marks_.end() && !found->second.tensor.expired();
    return is_marked ? found->second.*value : Value();
  }

  std::mutex mutex_;
  std::map<const TensorImpl*, Mark> marks_;
};

struct AllMarks {
  MarkedTensors flat_parts, divided_gradients, claimed_gradients, layer_parts, stage_parameters;
};

// They are never destroyed: a program may have a model or an optimizer that lives until its end.
AllMarks& marks() {
  static auto* const all = new AllMarks;
  return *all;
}

}  // namespace

void record_parts(const Tensors& parts) {
  marks().flat_parts.mark(parts);
}

bool is_part(const Tensor& tensor) {
  return marks().flat_parts.has(tensor);
}

void mark_divided_gradients(const Tensors& parameters) {
  marks().divided_gradients.mark(parameters);
}

void unmark_divided_gradients(const Tensors& parameters) {
  marks().divided_gradients.unmark(parameters);
}

bool has_divided_gradient(const Tensor& parameter) {
  return marks().divided_gradients.has(parameter);
}

void claim_gradients(const Tensors& parameters) {
  marks().claimed_gradients.mark(parameters);
}

void release_gradients(const Tensors& parameters) {
  marks().claimed_gradients.unmark(parameters);
}

int claims_of_gradient(const Tensor& parameter) {
  return marks().claimed_gradients.count_of(parameter);
}

void mark_layer_parts(const Tensors& parameters, const Ints& ranks) {
  marks().layer_parts.mark(parameters, ranks);
}

bool is_layer_part(const Tensor& parameter) {
  return marks().layer_parts.has(parameter);
}

Ints ranks_of_layer_parts(const Tensor& parameter) {
  return marks().layer_parts.numbers_of(parameter);
}

// Rank 0's part would replace the others', and with it the layer.
void refuse_other_parts(const std::string& owner,
                        const Tensors& parameters,
                        const Ints& ranks,
                        int rank) {
  for (const Tensor& parameter : parameters) {
    for (const int other : ranks_of_layer_parts(parameter)) {
      if (other == rank || !contains(ranks, other))
        continue;
      throw invalid_argument(
          owner,
          ": expected ranks with the same part of each divided layer, got other parts of one of [",
          sizes_text(parameter),
          "] on ranks ",
          std::min(rank, other),
          " and ",
          std::max(rank, other),
          " (rank ",
          rank,
          "); give it the group of the replicas, such as mesh.group(\"dp\")");
    }
  }
}

void mark_stage_parameters(const Tensors& parameters) {
  marks().stage_parameters.mark(parameters);
}

void unmark_stage_parameters(const Tensors& parameters) {
  marks().stage_parameters.unmark(parameters);
}

bool is_stage_parameter(const Tensor& parameter) {
  return marks().stage_parameters.has(parameter);
}

}  // namespace muster::optim
