#include "muster/parallel/sharded/unreduced_gradients.h"

#include <utility>

#include "muster/parallel/sharded/gradient_stand_ins.h"

namespace muster {

// Stand-ins are made once: a step puts and lifts them often.
UnreducedGradients::UnreducedGradients(const Tensors& parts, const std::string& error) {
  for (const Tensor& part : parts)
    places_.push_back(
        {.part = part, .stand_in = tensor_without_memory(part, error), .reduced = {}});
}

// What was reduced until now is neither lost nor seen.
void UnreducedGradients::put() {
  if (std::exchange(put_, true))
    return;
  for (Place& place : places_)
    place.reduced = std::exchange(place.part.mutable_grad(), place.stand_in);
}

// It comes before a backward adds to the gradients, and before they are cleared.
void UnreducedGradients::lift() {
  if (!std::exchange(put_, false))
    return;
  for (Place& place : places_) {
    const Tensor reduced = std::exchange(place.reduced, {});
    if (has_storage_of(place.part.grad(), place.stand_in))
      place.part.mutable_grad() = reduced;
  }
}

}  // namespace muster
