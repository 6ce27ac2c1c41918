#include "muster/ddp/optimizer_broadcast.h"

#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <sstream>
#include <string>
#include <utility>

namespace muster {

void broadcast_optimizer(torch::optim::Optimizer& optimizer, ProcessGroup& group, int root) {
  if (group.size() == 1)
    return;
  const bool gives = group.rank() == root;
  std::string bytes;
  if (gives) {
    std::ostringstream stream;
    torch::save(optimizer, stream);
    bytes = std::move(stream).str();
  }
  group.broadcast_bytes(bytes, root);
  if (gives)
    return;
  std::istringstream stream(std::move(bytes));
  torch::load(optimizer, stream, group.device());
}

}  // namespace muster
