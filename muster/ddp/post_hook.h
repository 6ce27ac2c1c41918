// Runs a function after a node of the autograd graph, and passes the node's outputs on.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <utility>

#include "muster/base/functions.h"
#include "muster/base/tensors.h"

namespace muster {

class PostHook : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(Callback body) : body_(std::move(body)) {}
  Tensors operator()(const Tensors& outputs, const Tensors&) override {
    body_();
    return outputs;
  }

 private:
  Callback body_;
};

}  // namespace muster
