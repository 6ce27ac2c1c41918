// Memory of the fake GPUs: pages of the host's, out of its reach but by what reach() gives. Every
// use is noted, and one that does not happen after those it depends on is an error, which is also
// said on standard error: whoever catches it does not hide it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tests/cuda/fake_streams.h"

namespace muster::testing {

class Block;

enum class Use { read, write };

// Of memory on the host, or of what lies behind a block.
struct Range {
  std::byte* begin;
  std::byte* end;
};
bool overlap(const Range& one, const Range& other);
Range range_of(const at::Tensor& on_host);  // from its first to its last value

// The allocator of the current GPU's memory: for c10::detail::empty…, after set_current_gpu().
c10::Allocator& gpu_allocator();
c10::Device current_gpu();
void set_current_gpu(c10::DeviceIndex ordinal) noexcept;  // of this thread, without a context there

// A context takes memory of its GPU for as long as the process lives. CUDA makes one where a thread
// sets its GPU or allocates. LibTorch's functions for events go back to the thread's own GPU, and
// so may make one that nobody has asked for, which is said.
void begin_context(c10::DeviceIndex ordinal) noexcept;
bool has_context(c10::DeviceIndex ordinal) noexcept;
class GoesBack {
 public:
  explicit GoesBack(const char* what) noexcept : what_(what), own_(current_gpu().index()) {}
  GoesBack(const GoesBack&) = delete;
  GoesBack& operator=(const GoesBack&) = delete;
  ~GoesBack();

 private:
  const char* const what_;
  const c10::DeviceIndex own_;
};

// The stream may use the memory, which was made on another.
void record_on_stream(const c10::DataPtr& memory, const c10::Stream& stream);

// A graph has gone, and with it what it has held at the address.
void release_of_graph(std::byte* address);

// The tensor's values as an operation has them: a tensor on the host in the same memory, which it
// keeps. Throws: Error of internal where the operation does not wait for what it depends on, or
// the memory is not for its stream.
at::Tensor reach(const at::Tensor& tensor, const Operation& operation, Use use);

// Memory whose values may become wrong. It keeps nothing.
class Spoilable {
 public:
  explicit Spoilable(const at::Tensor& on_gpu);
  void spoil() const;

 private:
  std::weak_ptr<Block> block_;
  std::vector<Range> ranges_;
};

}  // namespace muster::testing
