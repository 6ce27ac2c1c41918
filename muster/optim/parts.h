// Records tensors that are a rank's flat parts of parameters. Their shape is not the parameter's,
// so what decides by shapes must not see them. The classes that shard a model (muster/parallel)
// record them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::optim {

// A record lasts as long as the tensor.
void record_parts(const std::vector<at::Tensor>& parts);
bool is_part(const at::Tensor& tensor);

}  // namespace muster::optim
