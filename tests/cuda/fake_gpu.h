// The GPUs of fake_gpu.cc, as the fake library muster_cuda has them.
#pragma once

namespace muster::testing {

int num_fake_gpus();  // that this process sees; in fake_cuda.cc
void set_fake_gpu(int ordinal);

}  // namespace muster::testing
