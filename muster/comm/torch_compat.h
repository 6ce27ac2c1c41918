// The differences between LibTorch 2.11 and 2.15, and the only place that knows them.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"

namespace muster {

// An owning pointer to an autograd node: shared_ptr in 2.11, intrusive_ptr in 2.15.
using AutogradNodePtr =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const Tensor&>()));

// The tensor-to-tensor collectives: 2.15 renamed them and deprecated the old names.
template <class Group, class Options>
auto all_gather_single(Group& group, Tensor& output, Tensor& input, const Options& options) {
  if constexpr (requires { group.all_gather_single(output, input, options); }) {
    return group.all_gather_single(output, input, options);
  } else {
    return group._allgather_base(output, input, options);
  }
}

template <class Group, class Options>
auto reduce_scatter_single(Group& group, Tensor& output, Tensor& input, const Options& options) {
  if constexpr (requires { group.reduce_scatter_single(output, input, options); }) {
    return group.reduce_scatter_single(output, input, options);
  } else {
    return group._reduce_scatter_base(output, input, options);
  }
}

template <class Group, class Options>
auto all_to_all_single(Group& group,
                       Tensor& output,
                       Tensor& input,
                       Int64s& output_splits,
                       Int64s& input_splits,
                       const Options& options) {
  if constexpr (requires {
                  group.all_to_all_single(output, input, output_splits, input_splits, options);
                }) {
    return group.all_to_all_single(output, input, output_splits, input_splits, options);
  } else {
    return group.alltoall_base(output, input, output_splits, input_splits, options);
  }
}

// Whether storages can be told to refuse reads, and writes, until they are allowed again: 2.11
// cannot.
template <class Storage>
constexpr bool can_refuse_for_a_while() {
  return requires(Storage& storage) { storage.clear_data_ptr_access_error_msg_(); };
}

// Reading a storage throws `error` from now on, where LibTorch can be told so.
template <class Storage>
void refuse_reads_for_good(Storage& storage, const std::string& error) {
  if constexpr (requires { storage.release_data_and_set_meta_custom_data_ptr_error_msg_(error); })
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(error);
}
// Reading throws `error` until allow_reads().
template <class Storage>
void refuse_reads(Storage& storage, const std::string& error) {
  if constexpr (can_refuse_for_a_while<Storage>())
    refuse_reads_for_good(storage, error);
}
template <class Storage>
void allow_reads(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.clear_data_ptr_access_error_msg_();
}

// Writing calls `refuse`, which throws, until allow_writes().
template <class Storage>
void refuse_writes(Storage& storage, void (*refuse)(Storage*)) {
  if constexpr (requires { storage.set_materializer(refuse); }) {
    if (!storage.has_materializer())
      storage.set_materializer(refuse);
  }
}
template <class Storage>
void allow_writes(Storage& storage) {
  if constexpr (requires { storage.clear_materializer(); })
    storage.clear_materializer();
}

// Whether a CUDA graph is being captured on the stream. 2.11 cannot be asked: `unknown` is the
// answer then.
template <class Stream>
bool is_capturing(const Stream& stream, bool unknown) {
  if constexpr (requires { stream.is_capturing(); }) {
    return stream.is_capturing();
  } else {
    return unknown;
  }
}

}  // namespace muster
