// A CUDA graph: what a GPU is given to do once, it does again and again in the same memory, without
// the host. Used by train/graphed_step.h.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>

#include "muster/base/no_copy.h"

namespace muster {

class GpuGraph : NoCopy {
 public:
  GpuGraph() = default;
  virtual ~GpuGraph() = default;

  // From here to end(), the GPU keeps what the current stream is given, and does nothing of it.
  // That stream is not the default one. Memory that is allocated meanwhile lives as long as this
  // object. Whatever waits for the GPU throws.
  virtual void begin() = 0;
  // On the stream of begin(). Throws: c10::Error if anything in between was not to be captured.
  virtual void end() = 0;
  // Does it all, on the current stream. Does not block. Throws: failed_precondition once
  // end_communicator() has let the graph go.
  virtual void replay() = 0;
};

// Throws: unavailable without muster_cuda.
std::unique_ptr<GpuGraph> make_gpu_graph();

// Runs `end`, which aborts or shuts down a communicator of NCCL. NCCL waits there until no CUDA
// graph is left in which the communicator was captured, and whoever has one may wait for `end`: so
// all graphs of this process go meanwhile. Throws: what `end` throws.
void end_communicator(const std::function<void()>& end);

// A stream that nobody else has: LibTorch's own are given out again and again, and a capture would
// get what another part gives its stream. It lives as long as the process. Throws: as above.
c10::Stream new_gpu_stream(c10::Device device);

// Whether a thread of this process captures one now. With LibTorch 2.11 a call over NCCL of another
// thread then counts as captured too: its barrier does not wait. Let no other thread use the group.
bool is_a_graph_captured();

// Whether what the device's current stream is given now goes into a graph: nobody may ask for it or
// wait for it then.
bool is_captured_now(c10::Device device);

// Says so, while it lives.
class CapturesGraph : NoCopy {
 public:
  CapturesGraph();
  ~CapturesGraph();
};

}  // namespace muster
