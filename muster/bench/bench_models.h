// The models that `muster-bench ddp` trains: what is computed is the same in python_ddp.py.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

#include "muster/base/torch_names.h"

namespace muster {

// A model takes one tensor and returns logits [rows, labels].
struct BenchModel : Module {
  virtual torch::Tensor forward(const torch::Tensor& inputs) = 0;
  virtual torch::Tensor make_inputs(int64_t batch) const = 0;
  int64_t rows_of_sample = 1;
  int64_t labels = 10;
};

// Returns the number of samples with which a rank's step takes about as long with each model.
int64_t default_batch(const std::string& model);

// Throws: invalid_argument for another name.
std::shared_ptr<BenchModel> make_bench_model(const std::string& name);

}  // namespace muster
