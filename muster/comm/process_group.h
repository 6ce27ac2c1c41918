// A group of ranks and their collectives: a thin façade over c10d::ProcessGroup. It checks what the
// backends do not (strides, sizes, agreement of the ranks) and reports failures as muster::Error.
// Copies share the group.
//
// Collectives block; `…_async` forms return a Work to wait on. Over Gloo and NCCL the async forms
// block too the first time an operation is used with a given shape and type: the ranks then compare
// their calls, and a mismatch is thrown at once (invalid_argument, timeout). A rank must therefore
// not wait for anything that a peer does only after its own call. Shared memory compares every
// call, and wait() throws the mismatch. Tensors must be on `device()` or, in a CUDA group, on the
// CPU. Non-contiguous tensors are copied for the operation and copied back. All ranks must make the
// same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/comm/work.h"

namespace c10d {
class ProcessGroup;
class Store;
class Work;
}  // namespace c10d

namespace muster {

// The traffic of a rank is what it has passed to a group's collectives and messages since the group
// was made. `bytes` counts the tensors that the rank contributed: the tensor of an all_reduce, the
// input of a gather, the root's tensor of a broadcast. How often they cross a wire depends on the
// backend. DistributedDataParallel adds its gradient buckets, except sparse gradients. Other calls
// made directly on c10d() are not counted.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
};

// The caller goes on before it calls wait(), or waits at once: then a backend may work in the
// caller's thread.
enum class Caller { goes_on, waits };

enum class ReduceOp { sum, avg, min, max, product, band, bor, bxor };

class ProcessGroup {
 public:
  struct State;  // process_group.cc

  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;
  int size() const;
  c10::Device device() const;             // where this rank computes
  const std::string& backend() const;     // "gloo", "nccl", "shm", "shm+gloo" or "mpi"
  Traffic traffic() const;                // of this rank
  void add_traffic(const Traffic& more);  // what the owner has passed to c10d() directly

  // The same group, but calls made through this value have their own timeout: collectives,
  // messages, barriers, bytes. Ranks may use different timeouts. When it expires, the call throws
  // timeout, naming the missing ranks, and the group is unusable afterwards, as with the group's
  // own timeout. Calls made directly on c10d() ignore it. Throws: invalid_argument for 0 or less.
  [[nodiscard]] ProcessGroup with_timeout(std::chrono::milliseconds timeout) const;

  // Waits until the GPU has done all that this rank has begun; elsewhere it does nothing. Then this
  // rank's tensors are results, and no failure of another rank changes them. Blocking: for the GPU.
  // Throws: failed_precondition if the group was interrupted meanwhile.
  void wait_for_gpu();

  // Reduces over all ranks, in place; every rank gets the result. Source:
  // torch.distributed.all_reduce.
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum);
  [[nodiscard]] Work all_reduce_async(at::Tensor tensor,
                                      ReduceOp op = ReduceOp::sum,
                                      Caller caller = Caller::goes_on);

  // As all_reduce, but only `root` gets the result; on other ranks the tensor's content is
  // undefined afterwards.
  void reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum) {
    reduce_async(std::move(tensor), root, op, Caller::waits).wait();
  }
  [[nodiscard]] Work reduce_async(at::Tensor tensor,
                                  int root,
                                  ReduceOp op = ReduceOp::sum,
                                  Caller caller = Caller::goes_on);

  // Copies `root`'s content to every rank, in place.
  void broadcast(at::Tensor tensor, int root) {
    broadcast_async(std::move(tensor), root, Caller::waits).wait();
  }
  [[nodiscard]] Work broadcast_async(at::Tensor tensor, int root, Caller caller = Caller::goes_on);

  // output = the inputs of all ranks, joined along dimension 0. Shapes: input [n, …] → output
  // [size·n, …].
  void all_gather(at::Tensor output, at::Tensor input) {
    all_gather_async(std::move(output), std::move(input), Caller::waits).wait();
  }
  [[nodiscard]] Work all_gather_async(at::Tensor output,
                                      at::Tensor input,
                                      Caller caller = Caller::goes_on);

  // output = this rank's part of the reduction of all inputs. Shapes: input [size·n, …] → output
  // [n, …].
  void reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum) {
    reduce_scatter_async(std::move(output), std::move(input), op, Caller::waits).wait();
  }
  [[nodiscard]] Work reduce_scatter_async(at::Tensor output,
                                          at::Tensor input,
                                          ReduceOp op = ReduceOp::sum,
                                          Caller caller = Caller::goes_on);

  // Rank r gets the r-th part of every rank's input: equal parts along dimension 0, unless splits
  // are given. Splits are the numbers of rows sent to, and received from, each rank. What rank r
  // sends here must equal what this rank expects from r; only shared memory checks this. Source:
  // torch.distributed.all_to_all_single.
  void all_to_all(at::Tensor output,
                  at::Tensor input,
                  std::vector<int64_t> output_splits = {},
                  std::vector<int64_t> input_splits = {}) {
    all_to_all_async(std::move(output),
                     std::move(input),
                     std::move(output_splits),
                     std::move(input_splits),
                     Caller::waits)
        .wait();
  }
  [[nodiscard]] Work all_to_all_async(at::Tensor output,
                                      at::Tensor input,
                                      std::vector<int64_t> output_splits = {},
                                      std::vector<int64_t> input_splits = {},
                                      Caller caller = Caller::goes_on);

  // `root`'s output = all inputs joined along dimension 0; other ranks' `output` is ignored.
  void gather(at::Tensor output, at::Tensor input, int root) {
    gather_async(std::move(output), std::move(input), root, Caller::waits).wait();
  }
  [[nodiscard]] Work gather_async(at::Tensor output,
                                  at::Tensor input,
                                  int root,
                                  Caller caller = Caller::goes_on);

  // The ranks' inputs of different lengths, in the order of the ranks: on `root` one tensor for
  // each rank, on other ranks none. An undefined input is one of no rows, whatever the others' type
  // is. Shapes: input [n of this rank, …]; types and other dimensions as the other ranks'.
  // Collective: yes. Throws: invalid_argument, on every rank, for tensors that do not fit together.
  // Source: MPI_Gatherv.
  Tensors gather_varying(const at::Tensor& input, int root);
  // The same on every rank. Source: MPI_Allgatherv.
  Tensors all_gather_varying(const at::Tensor& input);

  // output = this rank's part of `root`'s input; other ranks' `input` is ignored.
  void scatter(at::Tensor output, at::Tensor input, int root) {
    scatter_async(std::move(output), std::move(input), root, Caller::waits).wait();
  }
  [[nodiscard]] Work scatter_async(at::Tensor output,
                                   at::Tensor input,
                                   int root,
                                   Caller caller = Caller::goes_on);

  void send(at::Tensor tensor, int to, int tag = 0) {
    send_async(std::move(tensor), to, tag).wait();
  }
  [[nodiscard]] Work send_async(at::Tensor tensor, int to, int tag = 0);
  void recv(at::Tensor tensor, int from, int tag = 0) {
    recv_async(std::move(tensor), from, tag).wait();
  }
  [[nodiscard]] Work recv_async(at::Tensor tensor, int from, int tag = 0);

  // Returns when every rank has called it.
  void barrier() { barrier_async(Caller::waits).wait(); }
  [[nodiscard]] Work barrier_async(Caller caller = Caller::goes_on);

  // Bytes instead of tensors, for small control data of any length.
  void broadcast_bytes(std::string& bytes, int root);
  // The ranks compare `what` before anything is sent, so that two different calls cannot be mixed
  // up. Shared memory compares only shapes, as always.
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const std::string& what = {});

  // Makes a group of some of this group's ranks, given in this group's numbering; rank i of the new
  // group is ranks[i]. Returns nothing on ranks that are not in it. Collective: over this whole
  // group. Throws: invalid_argument for lists that differ between ranks, showing both.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks);

  // The number of `rank` of this group in the group that it was made from.
  int parent_rank(int rank) const;

  // The number of `rank` of this group, or of this rank, in the job: the one that messages use.
  int job_rank(int rank) const;
  int job_rank() const;
  std::vector<int> job_ranks() const;  // of all its ranks

  // Leaves the group cleanly: waits until every rank has called it, then closes the connections.
  // Later calls are errors. Without it the destructor closes at once (right only after a failure).
  // Collective: yes.
  void shutdown();

  // For use after a failure: leaves connections open until the process ends, which it must do now.
  // If they closed earlier, other ranks would fail and end before this one and look like the cause.
  void abandon();

  // For calls that the owner makes on c10d() directly, and that this rank's GPU does: they are
  // watched, named and ended at the time limit as this group's own are. `operation` has static
  // storage; a number below 0 is none. Elsewhere, and in a CUDA graph that is captured, nothing is
  // watched. Does not block.
  void watch(const char* operation,
             int64_t number,
             const c10::intrusive_ptr<c10d::Work>& work) const;
  // The same for all that `run` gives the GPU's current stream, as one operation. Throws: what
  // `run` throws.
  void watch_stream(const char* operation, int64_t number, c10::function_ref<void()> run) const;

  // LibTorch's own objects, for whatever this façade lacks.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const;
  const c10::intrusive_ptr<c10d::Store>& store() const;

 private:
  void close();
  void agree_on_members(const std::vector<int>& ranks);
  friend class ProcessGroupCall;

  std::shared_ptr<State> state_;
  std::optional<std::chrono::milliseconds> timeout_;  // of each call; none: the group's
};

}  // namespace muster
