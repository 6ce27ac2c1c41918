// An optimizer that steps through another one, its part, which has this rank's share of the
// parameters: ShardedOptimizer. The part is what is saved; the options go back and forth.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>

namespace muster {

template <class Optimizer>
concept HasPart = requires(Optimizer& optimizer) {
  { optimizer.part() } -> std::convertible_to<torch::optim::Optimizer&>;
  optimizer.options_to_part();
  optimizer.options_from_part();
};

struct DelegatingOptimizer {
  const torch::optim::Optimizer* outer = nullptr;  // the program's own
  std::function<void()> options_to_part{};
  std::function<void()> options_from_part{};
};

}  // namespace muster
