// The GPUs of fake_gpu.cc, as the fake library muster_cuda has them.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace muster::testing {

int num_fake_gpus();  // that this process sees; in fake_cuda.cc
void set_fake_gpu(int ordinal);

// An event that is put on the GPU's current stream from now on is over when the work is.
void let_current_stream_wait(const c10::intrusive_ptr<c10d::Work>& work, c10::Device gpu);

}  // namespace muster::testing
