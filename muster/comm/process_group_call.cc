// A collective takes a number, is compared with the other ranks' where the backend does not do
// that, and is then started. Its Work gets everything that wait() needs: the tensors to copy back,
// the time limit and who waits for it, the record in the activity file.
#include "muster/comm/process_group_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/number.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/host/plain_tensor.h"
#include "muster/comm/interrupt.h"
#include "muster/comm/nccl/gpu_graph.h"

namespace muster {

namespace {

// A backend waits so much longer than Work::wait(), where the latter has the clock.
constexpr std::chrono::seconds kAfterOurs{30};

// Where the elements of a plain tensor lie in its storage. Units: bytes.
struct Extent {
  int64_t begin;
  int64_t size;
};

Extent extent_of(const Tensor& plain) {
  return {.begin = plain.storage_offset() * plain.element_size(),
          .size = plain.numel() * plain.element_size()};
}

// Whether NCCL has numbers of this type, as LibTorch gives them to it. It would take other types of
// a byte for whole numbers, or refuse them where it is started. Complex ones go as pairs. Eight
// bits of a float are for some GPUs alone, of which NCCL knows.
bool nccl_has_numbers(ScalarType type) {
  constexpr ScalarType kOthers[] = {kBool, at::kFloat8_e5m2, at::kFloat8_e4m3fn};
  return is_known_everywhere(c10::toRealValueType(type)) || contains(kOthers, type);
}

// LibTorch has no operation of NCCL's for bits, makes the sum of booleans their maximum, and leaves
// the average of integers to NCCL, which rounds as it likes.
bool nccl_has(ReduceOp op, ScalarType type) {
  constexpr ReduceOp kOfBits[] = {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor};
  if (!nccl_has_numbers(type))
    return false;
  if (op == ReduceOp::sum)
    return type != kBool;
  if (op == ReduceOp::avg)
    return !c10::isIntegralType(type, /*includeBool=*/true);
  return !contains(kOfBits, op);
}

bool overlap(const Extent& one, const Extent& other) {
  return one.begin < other.begin + other.size && other.begin < one.begin + one.size;
}

}  // namespace

ProcessGroupCall::ProcessGroupCall(const char* operation, ProcessGroup::State* state, Limit limit)
    : operation_(operation), state_(state), limit_(limit), pass_(state->gate.enter()) {
  state->fork.check(operation);
  if (!pass_)
    throw failed_precondition(operation, ": the process group was shut down");
  state->expect_not_interrupted(operation);
}

// Other backends say so themselves, in the operation that was interrupted.
void ProcessGroup::State::expect_not_interrupted(const char* operation) const {
  if (!can.on_gpus || num_interruptions() == interruptions)
    return;
  throw failed_precondition(
      operation,
      ": expected a group that is whole, got one that was interrupted, as a rank of it "
      "was lost (rank ",
      name(),
      ")");
}

// A copy that is made for an output is noted, and copied back when the call is over.
Tensor ProcessGroupCall::tensor(const Tensor& given, bool output) {
  check(given);
  if (output && state_->tells_of(given))
    tell_of_backward(operation_, given, state_->told_of_backward, state_->name());
  Tensor detached = given.requires_grad() ? given.detach() : given;
  if (is_plain(detached))
    return detached;
  Tensor copy = plain(detached);
  has_copied_ = true;
  if (output)
    copies_.push_back({.original = detached, .contiguous = copy});
  return copy;
}

void ProcessGroupCall::ends_graph_of(const Tensor& input) const {
  if (state_->tells_of(input))
    tell_of_input(operation_, state_->told_of_input, state_->name());
}

// NCCL leaves to its callers what the host's backends do by themselves.
bool ProcessGroupCall::is_for_nccl(const Tensor& tensor) const {
  return state_->can.on_gpus && !tensor.is_cpu();
}

Tensor ProcessGroupCall::as_known(const Tensor& plain) const {
  return is_for_nccl(plain) && !is_known_everywhere(plain.scalar_type()) ? as_bytes(plain) : plain;
}

Tensor ProcessGroupCall::moved(const Tensor& given, bool output) {
  return as_known(tensor(given, output));
}

Tensor ProcessGroupCall::numbers(const Tensor& given, bool output, ReduceOp op) {
  const Tensor memory = tensor(given, output);
  if (!is_for_nccl(memory))
    return memory;
  if (!nccl_has(op, memory.scalar_type())) {
    throw invalid_argument(operation_,
                           ": expected a reduction that NCCL has, got ",
                           to_string(op),
                           " of ",
                           toString(memory.scalar_type()),
                           " (rank ",
                           state_->name(),
                           "); reduce a tensor on the CPU, or of another type");
  }
  if (!memory.is_complex())
    return memory;
  if (op == ReduceOp::sum || op == ReduceOp::avg)
    return at::view_as_real(memory);
  throw invalid_argument(operation_,
                         ": expected an operation that ",
                         toString(memory.scalar_type()),
                         " has, got ",
                         to_string(op),
                         " (rank ",
                         state_->name(),
                         ")");
}

// MPI takes no input that lies in its output.
Tensor ProcessGroupCall::apart(const Tensor& input, const Tensor& output) {
  if (!input.storage().is_alias_of(output.storage()))
    return input;
  const Extent from = extent_of(input), to = extent_of(output);
  const auto [part, whole] = std::minmax(
      from, to, [](const Extent& one, const Extent& other) { return one.size < other.size; });
  const bool are_part_and_whole = part.size * state_->size == whole.size;
  const bool is_in_place = state_->options.backend != "mpi" && are_part_and_whole &&
                           part.begin == whole.begin + state_->rank * part.size;
  if (is_in_place || !overlap(from, to))
    return input;
  has_copied_ = true;
  return input.clone();
}

Tensor ProcessGroupCall::host_tensor(const Tensor& given, bool output) {
  const bool by_backend = state_->can.copies_gpus || state_->can.on_gpus;
  if (!given.defined() || !given.is_cuda() || by_backend)
    return moved(given, output);
  check(given);
  Tensor copy = output ? at::empty(given.sizes(), given.options().device(kCPU))
                       : plain(given.detach()).to(kCPU);
  if (output)
    copies_.push_back({.original = given.detach(), .contiguous = copy});
  return copy;
}

void ProcessGroupCall::check_root(int root) const {
  if (root >= 0 && root < state_->size)
    return;
  throw invalid_argument(operation_, ": expected 0 <= rank < ", state_->size, ", got ", root);
}

void ProcessGroupCall::check_parts(const Tensor& whole,
                                   const Tensor& part,
                                   const char* whole_name,
                                   const char* part_name) const {
  if (whole.numel() == part.numel() * state_->size && whole.scalar_type() == part.scalar_type())
    return;
  throw invalid_argument(operation_,
                         ": expected ",
                         whole_name,
                         " to hold ",
                         state_->size,
                         " × ",
                         part_name,
                         ", got ",
                         whole_name,
                         " ",
                         tensor_text(whole),
                         " and ",
                         part_name,
                         " ",
                         tensor_text(part),
                         " (rank ",
                         state_->name(),
                         ")");
}

// A tensor on a GPU makes the call one of the GPU's, where the backend has those.
void ProcessGroupCall::check(const Tensor& tensor) {
  const auto bad = [&](const std::string& expected, const std::string& got) {
    throw invalid_argument(
        operation_, ": expected ", expected, ", got ", got, " (rank ", state_->name(), ")");
  };
  if (!tensor.defined())
    bad("a tensor", "an undefined one");
  if (tensor.layout() != kStrided)
    bad("a dense tensor", cat(c10::toString(tensor.layout()), " ", tensor_text(tensor)));
  if (tensor.is_quantized())  // its scale would stay each rank's own
    bad("a tensor of plain numbers",
        cat("the quantized ", tensor_text(tensor), "; send int_repr()"));
  const Device device = state_->options.device;
  if (tensor.device() != device && !tensor.device().is_cpu())
    bad(cat("a tensor on ", device.str(), ", this rank's device"), tensor.device().str());
  on_device_ = on_device_ || (!tensor.device().is_cpu() && state_->can.on_gpus);
  if (first_ == nullptr)
    first_ = &tensor;
}

milliseconds ProcessGroupCall::limit() const {
  return limit_.value_or(state_->options.timeout);
}

// NCCL lets the host go on at once. So the host waits itself for a call that has a limit of its
// own, and for a barrier, which is for the host. Nobody may wait while a CUDA graph is captured.
void ProcessGroupCall::choose_waiting(Work::State& work) const {
  using Waiting = Work::State::Waiting;
  if (on_device_)
    work.waiting =
        (limit_ || is_barrier_) && !is_captured() ? Waiting::in_slices : Waiting::by_itself;
  else if (state_->can.ends_waits)
    work.waiting = Waiting::by_itself;
}

bool ProcessGroupCall::is_captured() const {
  return is_captured_now(state_->options.device);
}

// When Gloo's time runs out, its error names no rank, and it closes the connections of ranks whose
// time has not quite run out. When NCCL's does, its error names none either. So Work::wait() or the
// LateWatch gives up first, which knows who is missing.
ProcessGroupCall::Limit ProcessGroupCall::backend_limit() const {
  return state_->can.ends_waits ? limit_ : countable(limit() + kAfterOurs);
}

WorkStatePtr ProcessGroupCall::new_work() const {
  auto work = std::make_shared<Work::State>();
  work->operation = operation_;
  work->rank = state_->rank;
  work->names = state_->names;
  return work;
}

// A thread that has an earlier number than another also agrees and starts first, as on the other
// ranks.
Work ProcessGroupCall::start_with_all(Start start) {
  auto work = new_work();
  UniqueLock turn(state_->turn, std::defer_lock);
  if (state_->agreement)
    turn.lock();
  work->sequence = state_->sequence++;
  check_not_given_up(*work);
  if (state_->agreement)
    agree(*work);
  return launch(work, start);
}

// Compares the call with the other ranks'.
void ProcessGroupCall::agree(Work::State& work) {
  work.signature = cat(operation_, in_common_.empty() ? "" : " ", in_common_);
  if (CallNumber::here() >= 0)
    work.signature += cat(", number ", CallNumber::here());
  work.agreement = state_->agreement;
  translate_failures(work.name(),
                     [&] { work.agreement->before(work.sequence, work.signature, limit()); });
}

void ProcessGroupCall::watch(const WorkStatePtr& work) const {
  if (work->on_gpu) {
    state_->late_watch->add_of_gpu(work);
  } else if (work->waiting == Work::State::Waiting::in_slices) {
    state_->late_watch->add(work);
  }
}

// A call that was given up is still under way, and the backend would run the next one behind it, or
// never.
void ProcessGroupCall::check_not_given_up(const Work::State& work) const {
  if (!*state_->abandoned)
    return;
  if (state_->agreement)
    state_->agreement->give_up(work.sequence);
  throw failed_precondition(
      work.name(),
      ": expected a group in which no call was given up, got one in which this rank "
      "has left a call that failed; make a new one");
}

// The backend is called past c10d's group, which in LibTorch 2.11 makes a tensor of its own for a
// barrier, one for all threads.
Work ProcessGroupCall::start_barrier(Caller caller) {
  is_barrier_ = true;
  return start_with_all([&] {
    auto options = this->options<BarrierOptions>(caller);
    if (state_->can.on_gpus)
      options.device_ids = {state_->options.device.index()};
    return state_->group->getDefaultBackend()->barrier(options);
  });
}

Work ProcessGroupCall::start_with(int peer, int tag, Start start) {
  if (peer == state_->rank) {
    throw invalid_argument(operation_, ": expected another rank, got this rank (", peer, ")");
  }
  auto work = new_work();
  work->peer = peer;
  work->tag = tag;
  work->waiting =
      state_->can.ends_messages ? Work::State::Waiting::by_itself : Work::State::Waiting::once;
  return launch(work, start);
}

// muster's own backends count and write down collectives themselves. Messages are written down
// here, because a backend knows the peer's number in the group alone.
CallRecord ProcessGroupCall::new_record(const Work::State& work) const {
  if (work.peer < 0 && state_->backend != nullptr)
    return {};
  return CallRecord(state_->group_name.c_str(),
                    operation_,
                    work.sequence,
                    first_,
                    work.peer < 0 ? -1 : (*work.names)[work.peer],
                    work.tag);
}

Work ProcessGroupCall::launch(WorkStatePtr work, Start start) {
  work->abandoned = state_->abandoned;
  work->deadline = Deadline(limit());
  work->on_gpu = on_device_;
  choose_waiting(*work);
  CallRecord record = new_record(*work);
  std::optional<OuterRecord> outer;
  if (record)
    outer.emplace(record);
  try {
    // Nothing here is for autograd, whose key would also put every argument into a box.
    const NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    RECORD_USER_SCOPE(operation_);  // for LibTorch's profiler
    // The number is compared once, by whoever compares calls.
    const CallNumber compared(state_->agreement ? -1 : CallNumber::here());
    work->work = start();
  } catch (...) {
    record.end(/*failed=*/true);
    rethrow_translated(work->name());
  }
  work->record = std::move(record);  // empty where the backend has taken it
  if (on_device_)
    work->gpu_ends = state_->gpu_ends;
  if (on_device_ && has_copied_)
    work->started_on = current_stream_of(state_->options.device);
  work->copies = std::move(copies_);
  if (on_device_ && is_captured())
    state_->is_in_graph = true;
  else if (state_->late_watch)
    watch(work);
  return Work(std::move(work), state_->shared_from_this());
}

}  // namespace muster
