// The differences between LibTorch 2.11 and 2.15, and the only place that knows them.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace muster {

// An owning pointer to an autograd node: shared_ptr in 2.11, intrusive_ptr in 2.15.
using AutogradNodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// The tensor-to-tensor collectives: 2.15 renamed them and deprecated the old names.
template <class Group, class Options>
auto all_gather_single(Group& group, at::Tensor& output, at::Tensor& input, const Options& options) {
  if constexpr (requires { group.all_gather_single(output, input, options); }) {
    return group.all_gather_single(output, input, options);
  } else {
    return group._allgather_base(output, input, options);
  }
}

template <class Group, class Options>
auto reduce_scatter_single(Group& group, at::Tensor& output, at::Tensor& input, const Options& options) {
  if constexpr (requires { group.reduce_scatter_single(output, input, options); }) {
    return group.reduce_scatter_single(output, input, options);
  } else {
    return group._reduce_scatter_base(output, input, options);
  }
}

template <class Group, class Options>
auto all_to_all_single(Group& group, at::Tensor& output, at::Tensor& input,
                       std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                       const Options& options) {
  if constexpr (requires { group.all_to_all_single(output, input, output_splits, input_splits, options); }) {
    return group.all_to_all_single(output, input, output_splits, input_splits, options);
  } else {
    return group.alltoall_base(output, input, output_splits, input_splits, options);
  }
}

// Whether a CUDA graph is being captured on the stream. 2.11 cannot be asked, and is taken to capture.
template <class Stream>
bool is_capturing(const Stream& stream) {
  if constexpr (requires { stream.is_capturing(); }) {
    return stream.is_capturing();
  } else {
    return true;
  }
}

}  // namespace muster
