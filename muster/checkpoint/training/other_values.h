// A model of which rank 0's parameters alone are saved, though other ranks have others: experts of
// each rank's own (ignored_parameters), ranks that train alone. Used only by Checkpoints.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>

#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"

namespace muster {

struct OtherValues {
  std::string parameter;
  int rank = 0;
};

// The first parameter of which a rank has other values than rank 0, by a sample of each; roundings
// are not others. Ranks with another number of parameters are passed over. Whether there is one is
// the same on all ranks; its name is rank 0's there. Collective: yes. Blocking: for the GPU.
std::optional<OtherValues> other_values_than_rank0(ProcessGroup& group, const Module& model);

}  // namespace muster
