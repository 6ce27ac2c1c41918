// A model as text, for comparison across ranks before anything is sent: names, shapes, types,
// strides if unusual, and what is trained.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/model_source.h"

namespace muster {

// One line per parameter or buffer, in registration order: "parameter fc1.weight: Float [10, 64]".
std::string describe_model(const ModelSource& model);

// Throws: invalid_argument naming the first parameter or buffer in which a rank's description
// differs from rank 0's, with both.
void check_same_model(const Strings& descriptions, const ProcessGroup& group);

}  // namespace muster
