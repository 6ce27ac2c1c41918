// One host from what `nvidia-smi topo -m` printed: the matrix of links between GPUs, and to NICs.
// Called by read_inventory.h; pure.
#pragma once

#include <string>
#include <string_view>

#include "muster/device/inventory.h"

namespace muster {

// Whether a line of `text` is a row of such a matrix.
bool is_nvidia_smi_topo(std::string_view text);

// GPUs with their links, near CPUs and NUMA nodes. The output of `nvidia-smi -L` may stand before
// or after the matrix and gives their models and UUIDs (or PyTorch's collect_env their models);
// without it models are empty and UUIDs invented. Columns may be set with tabs, as nvidia-smi does,
// or with blanks. The host is named after the file, `source`. Throws: invalid_argument with the
// line and column when the matrix is not square, not symmetric, or holds what is no link. Source:
// nvidia-smi(1), "topo"; the legend that it prints.
Host nvidia_smi_topo_host(const std::string& text, const std::string& source);

}  // namespace muster
