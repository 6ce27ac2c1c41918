// A group of ranks and their collectives: a small façade over c10d::ProcessGroup that checks what the
// backends do not (strides, sizes, agreement of the ranks) and reports failures as muster::Error. Copies
// share the group.
//
// Collectives block; `…_async` forms return a Work to wait on. Over Gloo and NCCL they block too, until every
// rank has come, the first time an operation is used with a shape and type, and throw then what the
// comparison finds (invalid_argument, timeout): a rank must not wait for something else that a peer does
// after its call. (Shared memory compares every call, and wait() throws it.) Tensors must lie on `device()`
// or, in a CUDA group, on the CPU. Non-contiguous tensors are copied for the operation and back. All ranks
// must make the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/comm/work.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace muster {

// What a rank has given to a group's collectives and messages since it was made. Bytes are of tensors that it
// put in: an all_reduce's, a gather's input, a broadcast's on the root. How often they cross a wire is the
// backend's. DistributedDataParallel adds its buckets of gradients, but for sparse ones; what else goes to
// c10d past this class is not counted.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
};

// What a caller does until it wait()s. One that waits at once lets a backend work in the caller's own thread.
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
  void add_traffic(const Traffic& more);  // what its owner has given to c10d() past this class

  // The same group, whose calls made by this value have a time limit of their own: collectives, messages,
  // barriers, bytes. All ranks need not have the same. When it is over, the call throws timeout naming the
  // ranks that have not come, and as with the group's own limit the group is of no use afterwards. What is
  // given to c10d() does not know it. Throws: invalid_argument for 0 or less.
  [[nodiscard]] ProcessGroup with_timeout(std::chrono::milliseconds timeout) const;

  // Every rank ends with the reduction over all ranks, in place. Source: torch.distributed.all_reduce.
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum);
  [[nodiscard]] Work all_reduce_async(at::Tensor tensor, ReduceOp op = ReduceOp::sum,
                                      Caller caller = Caller::goes_on);

  // As all_reduce, but only `root` gets the result; elsewhere the tensor's content is undefined afterwards.
  void reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum) {
    reduce_async(std::move(tensor), root, op, Caller::waits).wait();
  }
  [[nodiscard]] Work reduce_async(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum,
                                  Caller caller = Caller::goes_on);

  // Every rank ends with `root`'s content, in place.
  void broadcast(at::Tensor tensor, int root) {
    broadcast_async(std::move(tensor), root, Caller::waits).wait();
  }
  [[nodiscard]] Work broadcast_async(at::Tensor tensor, int root, Caller caller = Caller::goes_on);

  // output = inputs of all ranks, joined along dimension 0. Shapes: input [n, …] → output [size·n, …].
  void all_gather(at::Tensor output, at::Tensor input) {
    all_gather_async(std::move(output), std::move(input), Caller::waits).wait();
  }
  [[nodiscard]] Work all_gather_async(at::Tensor output, at::Tensor input, Caller caller = Caller::goes_on);

  // output = this rank's part of the reduction of all inputs. Shapes: input [size·n, …] → output [n, …].
  void reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum) {
    reduce_scatter_async(std::move(output), std::move(input), op, Caller::waits).wait();
  }
  [[nodiscard]] Work reduce_scatter_async(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                          Caller caller = Caller::goes_on);

  // Rank r gets everybody's r-th part. Without splits: equal parts along dimension 0. Splits are rows sent
  // to, and received from, each rank; what r sends here must be what this rank receives from r, which only
  // shared memory compares. Source: torch.distributed.all_to_all_single.
  void all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits = {},
                  std::vector<int64_t> input_splits = {}) {
    all_to_all_async(std::move(output), std::move(input), std::move(output_splits), std::move(input_splits),
                     Caller::waits)
        .wait();
  }
  [[nodiscard]] Work all_to_all_async(at::Tensor output, at::Tensor input,
                                      std::vector<int64_t> output_splits = {},
                                      std::vector<int64_t> input_splits = {},
                                      Caller caller = Caller::goes_on);

  // `root`'s output = all inputs joined along dimension 0; elsewhere `output` is not looked at.
  void gather(at::Tensor output, at::Tensor input, int root) {
    gather_async(std::move(output), std::move(input), root, Caller::waits).wait();
  }
  [[nodiscard]] Work gather_async(at::Tensor output, at::Tensor input, int root,
                                  Caller caller = Caller::goes_on);

  // output = this rank's part of `root`'s input; elsewhere `input` is not looked at.
  void scatter(at::Tensor output, at::Tensor input, int root) {
    scatter_async(std::move(output), std::move(input), root, Caller::waits).wait();
  }
  [[nodiscard]] Work scatter_async(at::Tensor output, at::Tensor input, int root,
                                   Caller caller = Caller::goes_on);

  void send(at::Tensor tensor, int to, int tag = 0) { send_async(std::move(tensor), to, tag).wait(); }
  [[nodiscard]] Work send_async(at::Tensor tensor, int to, int tag = 0);
  void recv(at::Tensor tensor, int from, int tag = 0) { recv_async(std::move(tensor), from, tag).wait(); }
  [[nodiscard]] Work recv_async(at::Tensor tensor, int from, int tag = 0);

  // Returns when every rank has called it.
  void barrier() { barrier_async(Caller::waits).wait(); }
  [[nodiscard]] Work barrier_async(Caller caller = Caller::goes_on);

  // Bytes instead of tensors, for small control data of any length.
  void broadcast_bytes(std::string& bytes, int root);
  // `what` tells the ranks of one call from those of another: they compare it before anything is sent. (Over
  // shared memory they compare the shapes, as always.)
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const std::string& what = {});

  // A group of some of this group's ranks, given in this group's numbers; rank i of the new group is
  // ranks[i]. Nothing on ranks that are not in it. Collective: over this whole group, with the same list.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks);

  // The number that `rank` of this group has in the group that it was made from.
  int parent_rank(int rank) const;

  // The number that `rank` of this group, or this rank, has in the job: what messages call it.
  int job_rank(int rank) const;
  int job_rank() const;

  // Leaves the group in good order: waits until every rank has come, then closes connections. Later calls are
  // errors. Collective: yes. Without it the destructor closes at once (right after a failure).
  void shutdown();

  // After a failure: leaves connections open until the process ends, which it must do now. Closing them
  // earlier would let the other ranks fail, and end, before this one, and look like the cause.
  void abandon();

  // LibTorch's own objects, for what this façade does not offer.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const;
  const c10::intrusive_ptr<c10d::Store>& store() const;

 private:
  void close();

  std::shared_ptr<State> state_;
  std::optional<std::chrono::milliseconds> timeout_;  // of calls; none: the group's
};

}  // namespace muster
