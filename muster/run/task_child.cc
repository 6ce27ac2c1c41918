// Parent and child share two pieces of memory without a name in the file system (memfd), whose
// descriptors the child inherits. One holds the answer: a letter, and then the result's bytes or
// the error's text. The other holds the stop flag, a lock-free atomic that both map. The order
// itself travels as JSON in an environment variable.
#include "muster/run/task_child.h"

#include <cerrno>
#include <utility>

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/poll_one.h"
#include "muster/base/rank_env.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/launch/lease.h"
#include "muster/run/error_file.h"
#include "muster/run/own_program.h"
#include "muster/run/run_calls.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// The first letter of an answer.
constexpr char kResult = 'R';
constexpr char kFailure = 'E';
constexpr int kLookAtStopEveryMs = 100;

// Returns the child's environment: this process's, with what limits the child to its devices.
Environment environment_of(const TaskChild& child, const TaskOrder& order) {
  Environment environment = own_environment();
  environment.try_emplace("OMP_NUM_THREADS", cat(child.num_threads));
  if (!child.leases.empty())
    environment[kLeaseVariable] = join(child.leases, ",");
  for (const auto& [name, value] : child.variables) {
    if (value) {
      environment[name] = *value;
    } else {
      environment.erase(name);
    }
  }
  environment[kTaskVariable] = order_to_json(order);
  environment[kRunCallsVariable] = run_calls_for_children();
  return environment;
}

// A child inherits the descriptors that its order names, and the leases on its GPUs.
ChildOptions options_of(const TaskChild& child, const TaskOrder& order) {
  ChildOptions options;
  options.argv = child.argv;
  options.program = kOwnProgram;
  options.environment = environment_of(child, order);
  options.inherit_fds = {order.result_fd, order.stop_fd};
  if (order.plan_fd >= 0)
    options.inherit_fds.push_back(order.plan_fd);
  append_all(options.inherit_fds, child.leases);
  return options;
}

// Blocking: until the child has ended, however often a signal interrupts.
siginfo_t wait_for(const Child& child) {
  siginfo_t end{};
  while (::waitid(P_PID, child.pid, &end, WEXITED) != 0) {
    if (errno != EINTR)
      fail_errno(errno, "tasks: cannot wait for process ", child.pid);
  }
  return end;
}

// Waits for the child's end, and sends it SIGTERM once when `stop` is set.
void end_when_stopped(const Child& child, const SharedStop& stop) {
  bool ended = false;
  for (;;) {
    const int ready = poll_one(child.pidfd.get(), POLLIN, ended ? -1 : kLookAtStopEveryMs);
    if (ready > 0)
      return;
    if (ready < 0 && errno != EINTR)
      fail_errno(errno, "tasks: cannot wait for process ", child.pid);
    if (ended || stop.flag()->load() == 0)
      continue;
    ::syscall(SYS_pidfd_send_signal, child.pidfd.get(), SIGTERM, nullptr, 0U);
    ended = true;
  }
}

std::string text_of_end(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED)
    return cat("exit code ", end.si_status);
  return signal_name(end.si_status);
}

}  // namespace

Fd new_task_memory(const char* name) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd.valid())
    fail_errno("tasks: cannot make memory to share with a child", errno);
  return fd;
}

std::string read_task_memory(int fd) {
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = ::pread(fd, piece, sizeof(piece), std::ssize(text));
    if (got == 0)
      return text;
    if (got > 0) {
      text.append(piece, got);
    } else if (errno != EINTR) {
      fail_errno("tasks: cannot read a child's result", errno);
    }
  }
}

SharedStop::SharedStop() : fd_(new_task_memory("muster-stop")) {
  if (::ftruncate(fd_.get(), sizeof(std::atomic<int>)) != 0)
    fail_errno("tasks: cannot make memory to share with a child", errno);
  map();
}

SharedStop::SharedStop(int fd) : fd_(fd) {
  map();
}

SharedStop::~SharedStop() {
  ::munmap(flag_, sizeof(std::atomic<int>));
}

void SharedStop::map() {
  static_assert(std::atomic<int>::is_always_lock_free,
                "else it cannot be shared with another process");
  void* at =
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED)
    fail_errno("tasks: cannot map memory that is shared with a child", errno);
  flag_ = static_cast<std::atomic<int>*>(at);  // zeros are a flag that is not set
}

// Programs that a task starts inherit the variable too; their parent is another process.
std::optional<TaskOrder> task_order_from_environment() {
  const auto text = get_env(kTaskVariable);
  if (!text)
    return std::nullopt;
  try {
    const TaskOrder order = order_from_json(*text);
    (void)Device(order.device);  // throws for a text that is none
    if (order.parent != ::getppid())
      return std::nullopt;
    return order;
  } catch (const std::exception&) {
    throw invalid_argument("tasks: expected in ",
                           kTaskVariable,
                           " what a TaskSet gives its children, got '",
                           printable(*text),
                           "'; unset it");
  }
}

void use_task_device(Device device, const std::string& uuid) {
  if (!device.is_cuda())
    return;
  const auto found = use_cuda_device(device);
  // LibTorch may tell the GPU's UUID for a MIG instance, so only those of whole GPUs are compared.
  if (!uuid.starts_with("GPU-") || found == uuid)
    return;
  throw unavailable("tasks: expected LibTorch to find ",
                    uuid,
                    " as ",
                    device.str(),
                    ", got ",
                    found,
                    "; set CUDA_DEVICE_ORDER=PCI_BUS_ID before the program starts");
}

// The type's name says little to a person where the error is one of muster's own.
std::string text_of_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return describe_exception(error);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void answer_with_result(const TaskOrder& order, const std::string& bytes) {
  write_all(order.result_fd, kResult + bytes);
}

void answer_with_error(const TaskOrder& order, const std::string& message) {
  try {
    // A result that did not fit may have left its beginning.
    if (::ftruncate(order.result_fd, 0) != 0 || ::lseek(order.result_fd, 0, SEEK_SET) != 0)
      fail_errno("cannot write the answer again", errno);
    write_all(order.result_fd, kFailure + message);
  } catch (const std::exception& error) {
    log_error(message, " (", error.what(), ")");
  }
}

std::optional<std::string> result_of(const std::string& answer) {
  if (!answer.starts_with(kResult))
    return std::nullopt;
  return answer.substr(1);
}

// A child that has answered may still fail on its way out, so a result counts only with exit code
// 0.
std::string run_task_child(const TaskChild& child, const SharedStop& stop) {
  const Fd result = new_task_memory("muster-result");
  TaskOrder order = child.order;
  order.result_fd = result.get();
  order.stop_fd = stop.fd();
  order.parent = ::getpid();
  const Child process = spawn_child(options_of(child, order));
  const bool is_launcher = order.kind == TaskOrder::Kind::launcher;
  if (is_launcher)
    end_when_stopped(process, stop);
  const siginfo_t end = wait_for(process);
  const auto answer = read_task_memory(result.get());
  const bool has_exited = end.si_code == CLD_EXITED;
  if (has_exited && end.si_status == 0) {
    if (auto bytes = result_of(answer))
      return std::move(*bytes);
  }
  const auto who = cat(" (process ", process.pid, " on ", order.place, ")");
  if (has_exited && answer.starts_with(kFailure)) {
    // A launcher's text names the rank that failed, and its process.
    throw Error(ErrorCode::peer_failed, answer.substr(1), is_launcher ? "" : who);
  }
  throw Error(ErrorCode::peer_failed, "expected a result, got ", text_of_end(end), who);
}

}  // namespace muster
