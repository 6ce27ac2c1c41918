// CUDA graphs of the fake GPUs. What is launched on a stream while it is captured is kept, to be
// run again in the same memory by its address. As on a true GPU, it is not done meanwhile: it runs
// once, since only that tells the shapes of results, and in the end all memory is as it was before,
// and the graph's own is full of NaN. Memory that is allocated meanwhile lives as long as the
// graph. Whatever waits for the GPU, or asks it, is an error (fake_streams.h).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "muster/comm/nccl/gpu_graph.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

class Block;

class FakeGraph : public GpuGraph {
 public:
  ~FakeGraph() override;
  void begin() override;
  void end() override;
  void replay() override;

  // For the operations of the capture, in their order.
  void add(std::function<void()> again);
  // Before memory that there was before is written.
  void save(const std::shared_ptr<Block>& block);
  // Memory that is allocated in the capture.
  void own(std::byte* address, const std::shared_ptr<Block>& block);

 private:
  struct Saved {
    std::shared_ptr<Block> block;
    std::vector<std::byte> bytes;
  };
  void undo();

  std::mutex mutex_;
  c10::Stream stream_ = c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), 0);
  CaptureId id_ = 0;  // while it captures
  bool is_whole_ = false;
  at::Tensor random_state_;
  std::map<Block*, Saved> saved_;
  std::map<std::byte*, std::shared_ptr<Block>> own_;
  std::vector<std::function<void()>> operations_;
};

// The graph that captures; nullptr for none.
FakeGraph* graph_of(CaptureId capture);

// The same memory, whatever becomes of the tensor: a graph knows addresses. Of the host's tensors,
// which are arguments of a kernel, the values of now.
at::Tensor by_address(const at::Tensor& tensor);
std::vector<at::Tensor> by_address(const std::vector<at::Tensor>& tensors);
c10::IValue by_address(const c10::IValue& value);

}  // namespace muster::testing
