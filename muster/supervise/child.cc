// How it works: clone(CLONE_VM | CLONE_VFORK), as vfork does, on a stack of its own. The child
// shares the parent's memory, and the parent's thread waits until the child executes its program or
// ends. Everything that the child needs is made before it exists (ChildPlan), since it may call
// only what is async-signal-safe. What fails in it is written into the plan, where the parent finds
// it and says it in words.
#include "muster/supervise/child.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include "muster/base/blocked_signals.h"
#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/no_copy.h"
#include "muster/base/shortage.h"
#include "muster/base/signal_set.h"
#include "muster/supervise/program_file.h"

#ifdef __SANITIZE_THREAD__
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);
#endif

namespace muster {

namespace {

constexpr size_t kChildStackBytes = size_t{64} * 1024;

#ifdef __SANITIZE_THREAD__
// The sanitizer's clone() takes the child for one with memory of its own, and after it no longer
// watches the thread that called it, nor calls its signal handlers. This is the C library's.
constexpr auto clone_process = ::__clone;
#else
constexpr auto clone_process = ::clone;
#endif

constexpr auto kStepChangeFolder = "cannot change to";
constexpr auto kStepExec = "exec";

// The child must not allocate, so all that it needs is here before it exists. It shares the
// parent's memory, so the parent reads what it writes to `failed_*`.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* environment;
  const char* working_directory;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  const int* inherit_fds;
  size_t num_inherit_fds;
  pid_t parent;
  bool keep_sighup_ignored;
  const cpu_set_t* cpus;  // null: ours
  size_t cpus_bytes;
  const rlimit* open_files;  // null: ours
  volatile int failed_errno = 0;
  const char* volatile failed_step = nullptr;
};

// Puts `fd` at `target` without close-on-exec.
bool place_fd(int fd, int target) {
  if (fd == target)
    return ::fcntl(fd, F_SETFD, 0) == 0;
  return ::dup2(fd, target) == target;
}

// The kernel is called directly: the thread sanitizer's sigaction() notes handlers in memory, which
// the parent shares, and the parent's would be called no more. A function on the child's stack
// leaves it by exec, so the address sanitizer must not note its variables there.
[[gnu::no_sanitize_address]] void reset_signals(bool keep_sighup_ignored) {
  constexpr size_t kMaskBytes = NSIG / 8;
  const std::array<uint64_t, 8> standard{};  // the kernel's struct, and room: SIG_DFL, no flags
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGHUP && keep_sighup_ignored)
      continue;
    // Fails for SIGKILL and SIGSTOP: nothing to reset there.
    ::syscall(SYS_rt_sigaction, number, standard.data(), nullptr, kMaskBytes);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Async-signal-safe. /dev/null stands for a standard input that was not given.
bool place_standard_streams(const ChildPlan& plan) {
  const int input = plan.stdin_fd >= 0 ? plan.stdin_fd : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return input >= 0 && place_fd(input, 0) && place_fd(plan.stdout_fd, 1) &&
         place_fd(plan.stderr_fd, 2);
}

// The child runs this while the parent waits. It returns only when something failed: the step that
// did, with errno.
[[gnu::no_sanitize_address]] const char* become_program(const ChildPlan& plan) {
  if (::setpgid(0, 0) != 0)
    return "setpgid";
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
    return "prctl";
  if (::getppid() != plan.parent)
    ::_exit(SIGKILL);  // the parent died before prctl: nobody would tell us
  if (!place_standard_streams(plan))
    return "cannot set up standard streams";
  for (size_t i = 0; i < plan.num_inherit_fds; ++i) {
    if (::fcntl(plan.inherit_fds[i], F_SETFD, 0) != 0)
      return "cannot pass a file descriptor";
  }
  if (plan.working_directory != nullptr && ::chdir(plan.working_directory) != 0)
    return kStepChangeFolder;
  if (plan.cpus != nullptr && ::sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0)
    return "cannot bind to its CPUs";
  if (plan.open_files != nullptr && ::setrlimit(RLIMIT_NOFILE, plan.open_files) != 0)
    return "setrlimit";
  reset_signals(plan.keep_sighup_ignored);
  ::execve(plan.path, plan.argv, plan.environment);
  return kStepExec;
}

[[gnu::no_sanitize_address]] int child_main(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  plan->failed_step = become_program(*plan);
  plan->failed_errno = errno;
  ::_exit(127);
}

// A set of CPUs as the kernel takes it. It has room for any number, where cpu_set_t ends at 1024.
class CpuMask {
 public:
  explicit CpuMask(const Ints& cpus) {
    if (cpus.empty())
      return;
    const size_t num_cpus = *std::ranges::max_element(cpus) + size_t{1};
    set_.reset(CPU_ALLOC(num_cpus));
    if (!set_)
      throw std::bad_alloc();
    bytes_ = CPU_ALLOC_SIZE(num_cpus);
    CPU_ZERO_S(bytes_, set_.get());
    for (const int cpu : cpus)
      CPU_SET_S(cpu, bytes_, set_.get());
  }
  const cpu_set_t* set() const { return set_.get(); }  // null: no CPUs were named
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  std::unique_ptr<cpu_set_t, Free> set_;
  size_t bytes_ = 0;
};

// The child's stack. One a thread is enough and is kept for the next child, since the parent waits
// while a child uses it.
class ChildStack : NoCopy {
 public:
  ChildStack()
      : base_(::mmap(nullptr,
                     kChildStackBytes,
                     PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                     -1,
                     0)) {
    if (base_ == MAP_FAILED)
      fail_errno("cannot map a stack for a new process", errno);
  }
  ~ChildStack() { ::munmap(base_, kChildStackBytes); }
  void* top() const { return static_cast<char*>(base_) + kChildStackBytes; }

 private:
  void* base_;
};

// Ends a process that nobody could wait for. errno stays what it is.
pid_t without_pidfd(pid_t child) {
  const int why = errno;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  errno = why;
  return -1;
}

// The process id, and the pidfd by `pidfd`. An emulator of another processor (qemu before 8) makes
// no pidfd with the process: it is opened before anybody could wait for the process and free its
// id.
pid_t start_child(void* stack, ChildPlan& plan, int& pidfd) {
  constexpr int kFlags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  const BlockedSignals blocked;
  const pid_t pid = clone_process(child_main, stack, kFlags | CLONE_PIDFD, &plan, &pidfd);
  if (pid >= 0 || errno != EINVAL)
    return pid;
  const pid_t emulated = clone_process(child_main, stack, kFlags, &plan);
  if (emulated < 0)
    return emulated;
  pidfd = static_cast<int>(::syscall(SYS_pidfd_open, emulated, 0));
  return pidfd < 0 ? without_pidfd(emulated) : emulated;
}

// The child has written into the plan which step failed, and its errno.
SpawnError cannot_become_program(const ChildOptions& options,
                                 const std::string& path,
                                 const ChildPlan& plan) {
  const std::string step = plan.failed_step;
  const std::string why = std::strerror(plan.failed_errno);
  if (step == kStepChangeFolder)
    return not_startable(path, cat(step, " '", options.working_directory, "': ", why));
  if (step != kStepExec)
    return not_startable(path, cat(step, ": ", why));
  return cannot_exec(path, plan.failed_errno);
}

// The PATH that counts is the child's, not this process's.
std::string search_path_of(const ChildOptions& options) {
  return find_or(options.environment, "PATH", "/usr/local/bin:/usr/bin:/bin");
}

std::string program_of(const ChildOptions& options) {
  if (!options.program.empty())
    return options.program;
  return find_program(options.argv[0], search_path_of(options));
}

// `path` has a slash, so nothing is looked up.
std::string expect_executable(const std::string& path) {
  if (!is_executable_file(path))
    throw cannot_execute(path);
  return path;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.empty())
    throw not_found(name, "expected a program, got an empty name");
  if (contains(name, '/'))
    return expect_executable(name);
  std::string not_executable;
  for (const auto& folder : split(search_path, ':')) {
    // An empty entry of PATH is the current folder.
    auto path = cat(folder.empty() ? "." : folder, "/", name);
    if (is_executable_file(path))
      return path;
    if (not_executable.empty() && is_regular_file(path))
      not_executable = path;
  }
  if (!not_executable.empty())
    throw cannot_execute(not_executable);
  const bool is_in_this_folder = ::access(name.c_str(), F_OK) == 0;
  if (is_in_this_folder)
    throw not_found(name, cat("not found in PATH; the one in this folder is ./", name));
  throw not_found(name, "not found in PATH; correct the name or give a path");
}

// execve does not write into the texts.
std::vector<char*> exec_pointers(const Strings& texts) {
  auto pointers = mapped(texts, [](const auto& text) { return const_cast<char*>(text.c_str()); });
  pointers.push_back(nullptr);
  return pointers;
}

Strings exec_entries(const StringMap& environment) {
  return mapped(environment,
                [](const auto& variable) { return cat(variable.first, "=", variable.second); });
}

Child spawn_child(const ChildOptions& options) {
  if (options.argv.empty())
    throw invalid_argument("spawn: expected a program, got none");
  const auto path = program_of(options);
  expect_words_without_line_end(path, search_path_of(options));
  const Strings variables = exec_entries(options.environment);
  const auto argv = exec_pointers(options.argv);
  const auto environment = exec_pointers(variables);
  const auto& folder = options.working_directory;
  const CpuMask cpus(options.cpus);
  ChildPlan plan{.path = path.c_str(),
                 .argv = argv.data(),
                 .environment = environment.data(),
                 .working_directory = folder.empty() ? nullptr : folder.c_str(),
                 .stdin_fd = options.stdin_fd,
                 .stdout_fd = options.stdout_fd,
                 .stderr_fd = options.stderr_fd,
                 .inherit_fds = options.inherit_fds.data(),
                 .num_inherit_fds = options.inherit_fds.size(),
                 .parent = ::getpid(),
                 // nohup is meant for the children too, although they get every other signal's
                 // default back.
                 .keep_sighup_ignored = action_of(SIGHUP).sa_handler == SIG_IGN,
                 .cpus = cpus.set(),
                 .cpus_bytes = cpus.bytes(),
                 .open_files = options.open_files ? &*options.open_files : nullptr};
  thread_local const ChildStack stack;
  int pidfd = -1;
  const pid_t pid = start_child(stack.top(), plan, pidfd);
  if (pid < 0 && errno == EAGAIN)
    throw Shortage(EAGAIN,
                   cat("cannot make a process for '",
                       printable(path),
                       "': there may be no more; raise the limit of processes (ulimit -u, or "
                       "pids.max of the control group)"));
  if (pid < 0)
    fail_errno(errno, "cannot make a process for '", path, "'");
  Child child{.pid = pid, .pidfd = Fd(pidfd)};
  if (plan.failed_step != nullptr) {
    ::waitpid(pid, nullptr, 0);
    if (is_shortage(plan.failed_errno))
      fail_errno(plan.failed_errno, "cannot start '", path, "'");
    throw cannot_become_program(options, path, plan);
  }
  return child;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? cat("SIG", name) : cat("signal ", signal);
}

}  // namespace muster
