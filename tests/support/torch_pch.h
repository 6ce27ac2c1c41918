// Precompiled: LibTorch's dear headers, parsed once a build instead of once a source.
#pragma once

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
