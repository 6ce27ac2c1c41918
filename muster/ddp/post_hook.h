// Runs a function after a node of the autograd graph, and passes the node's outputs on.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <utility>

namespace muster {

class PostHook : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void()> body) : body_(std::move(body)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    body_();
    return outputs;
  }

 private:
  std::function<void()> body_;
};

}  // namespace muster
