// What a checkpoint says of the model that its adapters belong to: with other weights they would
// mean something else.
#pragma once

#include <muster/base/error.h>
#include <muster/checkpoint/saved_state.h>
#include <torch/torch.h>

#include <vector>

#include "../02_gpt/gpt.h"
#include "lora.h"

class BaseModel {
 public:
  BaseModel(Gpt net, const LoraOptions& lora) : sizes_(net->options), alpha_(lora.alpha) {
    std::vector<int64_t> sums;  // of the bits, so that their order does not matter
    for (const auto& parameter : net->parameters())
      sums.push_back(parameter.detach().view(torch::kInt).sum().item<int64_t>());
    sums_ = torch::tensor(sums);
  }

  const GptOptions& sizes() const { return sizes_; }

  muster::SavedState state() const {
    return {.numbers = {{"alpha", alpha_}}, .tensors = {{"sums", sums_}}};
  }
  // Throws: invalid_argument.
  void load_state(const muster::SavedState& state) const {
    const auto saved = state.tensor("base", "sums");
    if (torch::equal(saved, sums_) && state.number("base", "alpha") == alpha_)
      return;
    throw muster::Error(muster::ErrorCode::invalid_argument,
                        "--resume: expected the --weights and the --alpha of before, got others; "
                        "give those, or another --run-dir");
  }

 private:
  GptOptions sizes_;
  double alpha_;
  torch::Tensor sums_;
};
