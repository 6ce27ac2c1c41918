// Bytes of any length go as collectives of tensors: first the length, then the content. The
// content's shape is no part of what the ranks compare, since it would be new with every call.
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "muster/base/strings.h"
#include "muster/comm/group_state.h"
#include "muster/comm/process_group_call.h"
#include "muster/comm/torch_compat.h"

namespace muster {

// The root's length decides: the others resize to it.
void ProcessGroup::broadcast_bytes(std::string& bytes, int root) {
  Tensor length = at::empty({1}, kLong);
  length.fill_(std::ssize(bytes));
  broadcast(length, root);
  const auto size = length.item<int64_t>();
  if (size == 0) {
    bytes.clear();
    return;
  }
  Tensor content = at::empty({size}, kByte);
  if (rank() == root)
    std::memcpy(content.data_ptr(), bytes.data(), bytes.size());
  ProcessGroupCall call("broadcast_bytes", *this);
  Tensors tensors{content};
  call.in_common([&] { return cat("from ", root); });
  call.start([&](auto& group) {
        auto options = call.options<BroadcastOptions>(Caller::waits);
        options.rootRank = root;
        return group.broadcast(tensors, options);
      })
      .wait();
  bytes.assign(static_cast<const char*>(content.const_data_ptr()), size);
}

// All ranks' bytes are padded to the longest.
Strings ProcessGroup::all_gather_bytes(const std::string& bytes, const std::string& what) {
  Tensor lengths = at::empty({size()}, kLong);
  Tensor length = at::empty({1}, kLong);
  length.fill_(std::ssize(bytes));
  const auto gather = [this](Tensor& all, Tensor& own, const std::string& in_common) {
    ProcessGroupCall call("all_gather_bytes", *this);
    call.in_common([&] { return in_common; });
    call.start([&](auto& group) {
          return all_gather_single(group, all, own, call.options<AllgatherOptions>(Caller::waits));
        })
        .wait();
  };
  gather(lengths, length, cat("lengths ", what));
  const auto longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  Tensor mine = at::zeros({longest}, kByte);
  std::memcpy(mine.data_ptr(), bytes.data(), bytes.size());
  Tensor all = at::empty({size() * longest}, kByte);
  gather(all, mine, "");
  const auto* const first = static_cast<const char*>(all.const_data_ptr());
  return mapped_indices(size(), [&](int rank) {
    return std::string(first + rank * longest, lengths[rank].item<int64_t>());
  });
}

}  // namespace muster
