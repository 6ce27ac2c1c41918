// NCCL on the fake GPUs, as LibTorch's ProcessGroupNCCL has it, over muster's shared memory.
//
// A communicator has a stream of its own, which waits for the current one when an operation is
// started; Work::wait() lets the current stream wait for the operation, and not the host. What is
// not waited for is found as everywhere on the GPUs (fake_memory.h).
//
// A communicator is made as LibTorch makes one: the host waits in it for all ranks, after
// NcclGroup::made was called, and an abort by another thread waits for the end of that.
//
// An operation counts as under way until the host knows that it is over, by a wait or a question,
// however fast it was. shutdown() waits for what is under way. abort() gives it up, and the values
// of what it would have written become wrong; so does the destructor without either of them, and
// says so. An operation that another rank has given up, or does not come to, is never over; nor is
// one in which FAKE_NCCL_HANGS lets a GPU hang (fake_communicator.h). When
// one takes longer than the group's timeout the process ends, or with
// TORCH_NCCL_ASYNC_ERROR_HANDLING=0 its work has failed.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/comm/nccl/plugin.h"

namespace muster::testing {

c10::intrusive_ptr<c10d::Backend> make_fake_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const NcclGroup& group);

}  // namespace muster::testing
