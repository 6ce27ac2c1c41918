#include "muster/run/task_child.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "muster/base/env.h"
#include "muster/comm/nccl.h"
#include "muster/run/error_file.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

constexpr char kResult = 'R';
constexpr char kFailure = 'E';

Fd new_task_memory(const char* name) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd.valid()) fail_errno("tasks: cannot make memory to share with a child", errno);
  return fd;
}

std::string order_to_json(const TaskOrder& order) {
  const nlohmann::json json = {
      {"name", order.name},           {"number", order.number},       {"tasks", order.tasks},
      {"place", order.place},         {"device", order.device.str()}, {"uuid", order.uuid},
      {"result_fd", order.result_fd}, {"stop_fd", order.stop_fd},     {"parent", order.parent}};
  return json.dump();
}

TaskOrder order_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  TaskOrder order;
  json.at("name").get_to(order.name);
  json.at("number").get_to(order.number);
  json.at("tasks").get_to(order.tasks);
  json.at("place").get_to(order.place);
  order.device = c10::Device(json.at("device").get<std::string>());
  json.at("uuid").get_to(order.uuid);
  json.at("result_fd").get_to(order.result_fd);
  json.at("stop_fd").get_to(order.stop_fd);
  json.at("parent").get_to(order.parent);
  return order;
}

std::map<std::string, std::string> environment_of(const TaskChild& child, const TaskOrder& order) {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      environment[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  environment.try_emplace("OMP_NUM_THREADS", cat(child.num_threads));
  for (const auto& [name, value] : child.variables) {
    if (value) {
      environment[name] = *value;
    } else {
      environment.erase(name);
    }
  }
  environment[kTaskVariable] = order_to_json(order);
  return environment;
}

// The program that runs now, also where its file has been replaced since.
ChildOptions options_of(const TaskChild& child, const TaskOrder& order) {
  ChildOptions options;
  options.argv = child.argv;
  options.program = "/proc/self/exe";
  options.environment = environment_of(child, order);
  options.inherit_fds = {order.result_fd, order.stop_fd};
  return options;
}

siginfo_t wait_for(const Child& child) {
  siginfo_t end{};
  while (::waitid(P_PID, static_cast<id_t>(child.pid), &end, WEXITED) != 0) {
    if (errno != EINTR) fail_errno(cat("tasks: cannot wait for process ", child.pid), errno);
  }
  return end;
}

std::string read_answer(int fd) {
  std::string answer;
  char piece[4096];
  for (ssize_t got = 0; (got = ::pread(fd, piece, sizeof(piece), static_cast<off_t>(answer.size()))) != 0;) {
    if (got < 0 && errno != EINTR) fail_errno("tasks: cannot read a child's result", errno);
    if (got > 0) answer.append(piece, static_cast<size_t>(got));
  }
  return answer;
}

}  // namespace

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
  static_assert(std::atomic<int>::is_always_lock_free, "else it cannot be shared with another process");
  void* at = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) fail_errno("tasks: cannot map memory that is shared with a child", errno);
  flag_ = static_cast<std::atomic<int>*>(at);  // zeros are a flag that is not set
}

std::optional<TaskOrder> task_order_from_environment() {
  const auto text = get_env(kTaskVariable);
  if (!text) return std::nullopt;
  try {
    const TaskOrder order = order_from_json(*text);
    if (order.parent != ::getppid()) return std::nullopt;
    return order;
  } catch (const std::exception&) {
    throw Error(ErrorCode::invalid_argument,
                cat("tasks: expected in ", kTaskVariable, " what a TaskSet gives its children, got '",
                    printable(*text), "'; unset it"));
  }
}

void use_task_device(c10::Device device, const std::string& uuid) {
  if (!device.is_cuda()) return;
  const std::string found = use_cuda_device(device);
  if (!uuid.starts_with("GPU-") || found == uuid) return;  // a MIG instance's is another than its GPU's
  throw Error(ErrorCode::unavailable,
              cat("tasks: expected LibTorch to find ", uuid, " as ", device.str(), ", got ", found,
                  "; set CUDA_DEVICE_ORDER=PCI_BUS_ID before the program starts"));
}

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
  write_all(order.result_fd, kFailure + message);
}

std::string run_task_child(const TaskChild& child, const SharedStop& stop) {
  const Fd result = new_task_memory("muster-result");
  TaskOrder order = child.order;
  order.result_fd = result.get();
  order.stop_fd = stop.fd();
  order.parent = ::getpid();
  const Child process = spawn_child(options_of(child, order));
  const siginfo_t end = wait_for(process);
  const std::string answer = read_answer(result.get());
  if (end.si_code == CLD_EXITED && end.si_status == 0 && answer.starts_with(kResult)) return answer.substr(1);
  const std::string who = cat("process ", process.pid, " on ", order.place);
  if (end.si_code == CLD_EXITED && answer.starts_with(kFailure))
    throw Error(ErrorCode::peer_failed, cat(answer.substr(1), " (", who, ")"));
  const std::string how =
      end.si_code == CLD_EXITED ? cat("exit code ", end.si_status) : signal_name(end.si_status);
  throw Error(ErrorCode::peer_failed, cat("expected a result, got ", how, " (", who, ")"));
}

}  // namespace muster
