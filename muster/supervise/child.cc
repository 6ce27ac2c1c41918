#include "muster/supervise/child.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "muster/base/blocked_signals.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"

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

// Everything the child needs, made before it exists: it must not allocate. It shares the parent's
// memory, so what it writes to `failed_*` the parent reads.
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

// By the kernel's own call: the thread sanitizer's sigaction() notes handlers in memory, which the
// parent shares, and the parent's would be called no more. What runs on the child's stack leaves it
// by exec, so the address sanitizer must not note its variables there.
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

bool place_standard_streams(const ChildPlan& plan) {
  const int input = plan.stdin_fd >= 0 ? plan.stdin_fd : ::open("/dev/null", O_RDONLY);
  return input >= 0 && place_fd(input, 0) && place_fd(plan.stdout_fd, 1) &&
         place_fd(plan.stderr_fd, 2);
}

// Runs in the child, on a stack of its own, while the parent waits. Returns only when something
// failed.
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
    return "cannot change to";
  if (plan.cpus != nullptr && ::sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0)
    return "cannot bind to its CPUs";
  if (plan.open_files != nullptr && ::setrlimit(RLIMIT_NOFILE, plan.open_files) != 0)
    return "setrlimit";
  reset_signals(plan.keep_sighup_ignored);
  ::execve(plan.path, plan.argv, plan.environment);
  return "exec";
}

[[gnu::no_sanitize_address]] int child_main(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  plan->failed_step = become_program(*plan);
  plan->failed_errno = errno;
  ::_exit(127);
}

// The pointer array that exec wants, into strings that the caller keeps.
std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings)
    result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// CPUs as the kernel takes them, for any number of them.
class CpuMask {
 public:
  explicit CpuMask(const std::vector<int>& cpus) {
    if (cpus.empty())
      return;
    const size_t num_cpus = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
    words_.resize(CPU_ALLOC_SIZE(num_cpus) / sizeof(unsigned long));
    for (const int cpu : cpus)
      CPU_SET_S(static_cast<size_t>(cpu), bytes(), reinterpret_cast<cpu_set_t*>(words_.data()));
  }
  const cpu_set_t* set() const {
    return words_.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(words_.data());
  }
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

// A mapping used as the child's stack. One a thread is enough, and is kept for the next child: the
// parent waits while the child uses it.
class ChildStack {
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
  ChildStack(const ChildStack&) = delete;
  ChildStack& operator=(const ChildStack&) = delete;
  ~ChildStack() { ::munmap(base_, kChildStackBytes); }
  void* top() const { return static_cast<char*>(base_) + kChildStackBytes; }

 private:
  void* base_;
};

bool is_executable_file(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// Why a path that has a slash cannot be executed, as an exception.
SpawnError cannot_execute(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return {127, cat("cannot start '", path, "': ", std::strerror(errno), "; correct the path")};
  }
  if (S_ISDIR(info.st_mode)) {
    return {126, cat("cannot start '", path, "': it is a directory; name a program in it")};
  }
  return {126, cat("cannot start '", path, "': not executable; make it so with: chmod +x ", path)};
}

// Of a program that is there, and whose start says that something is not.
std::string missing_interpreter(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char bytes[256];
  const ssize_t size = ::read(file.get(), bytes, sizeof(bytes));
  std::string line(bytes, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  line.resize(std::min(line.find('\n'), line.size()));
  if (!line.starts_with("#!"))
    return "the interpreter that it names was not found";
  const std::string named(trim(std::string_view(line).substr(2)));
  if (!line.ends_with('\r'))
    return cat("its interpreter '", printable(named), "' was not found");
  return cat("its lines end as on Windows, so that no interpreter '",
             printable(named),
             "\\r' was found; mend it with: sed -i 's/\\r$//' ",
             path);
}

SpawnError cannot_exec(const ChildOptions& options,
                       const std::string& path,
                       const ChildPlan& plan) {
  const std::string why = std::strerror(plan.failed_errno);
  if (plan.failed_step != std::string_view("exec")) {
    const bool directory = plan.failed_step == std::string_view("cannot change to");
    return {126,
            cat("cannot start '",
                path,
                "': ",
                std::string(plan.failed_step),
                directory ? cat(" '", options.working_directory, "'") : std::string(),
                ": ",
                why)};
  }
  if (plan.failed_errno == ENOEXEC) {
    return {126,
            cat("cannot start '",
                path,
                "': neither a program of this machine's kind nor a script with a #! line; "
                "rebuild it, or name its interpreter first")};
  }
  if (plan.failed_errno == ENOENT) {
    return {127, cat("cannot start '", path, "': ", missing_interpreter(path))};
  }
  return {126, cat("cannot start '", path, "': ", why)};
}

std::string program_of(const ChildOptions& options) {
  if (!options.program.empty())
    return options.program;
  const auto search = options.environment.find("PATH");
  return find_program(
      options.argv[0],
      search != options.environment.end() ? search->second : "/usr/local/bin:/usr/bin:/bin");
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.empty())
    throw SpawnError(127, "cannot start '': expected a program, got an empty name");
  if (name.find('/') != std::string::npos) {
    if (!is_executable_file(name))
      throw cannot_execute(name);
    return name;
  }
  std::string not_executable;
  for (const std::string& folder : split(search_path, ':')) {
    std::string path = folder.empty() ? cat("./", name) : cat(folder, "/", name);
    if (is_executable_file(path))
      return path;
    struct stat info = {};
    if (not_executable.empty() && ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      not_executable = path;
    }
  }
  if (!not_executable.empty())
    throw cannot_execute(not_executable);
  const bool here = ::access(name.c_str(), F_OK) == 0;
  throw SpawnError(127,
                   cat("cannot start '",
                       name,
                       "': not found in PATH; ",
                       here ? cat("the one in this folder is ./", name)
                            : std::string("correct the name or give a path")));
}

Child spawn_child(const ChildOptions& options) {
  if (options.argv.empty())
    throw Error(ErrorCode::invalid_argument, "spawn: expected a program, got none");
  const std::string path = program_of(options);
  std::vector<std::string> variables;
  variables.reserve(options.environment.size());
  for (const auto& [name, value] : options.environment)
    variables.push_back(cat(name, "=", value));
  const std::vector<char*> argv = pointers(options.argv);
  const std::vector<char*> environment = pointers(variables);

  const CpuMask cpus(options.cpus);
  struct sigaction hangup = {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  ChildPlan plan{.path = path.c_str(),
                 .argv = argv.data(),
                 .environment = environment.data(),
                 .working_directory = options.working_directory.empty()
                                          ? nullptr
                                          : options.working_directory.c_str(),
                 .stdin_fd = options.stdin_fd,
                 .stdout_fd = options.stdout_fd,
                 .stderr_fd = options.stderr_fd,
                 .inherit_fds = options.inherit_fds.data(),
                 .num_inherit_fds = options.inherit_fds.size(),
                 .parent = ::getpid(),
                 .keep_sighup_ignored = hangup.sa_handler == SIG_IGN,
                 .cpus = cpus.set(),
                 .cpus_bytes = cpus.bytes(),
                 .open_files = options.open_files ? &*options.open_files : nullptr};
  thread_local const ChildStack stack;
  int pidfd = -1;
  pid_t pid = -1;
  {
    const BlockedSignals blocked;
    pid = clone_process(
        child_main, stack.top(), CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &plan, &pidfd);
  }
  if (pid < 0)
    fail_errno(cat("cannot make a process for '", path, "'"), errno);
  Child child{.pid = pid, .pidfd = Fd(pidfd)};
  if (plan.failed_step != nullptr) {
    ::waitpid(pid, nullptr, 0);
    if (is_shortage(plan.failed_errno))
      fail_errno(cat("cannot start '", path, "'"), plan.failed_errno);
    throw cannot_exec(options, path, plan);
  }
  return child;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? cat("SIG", name) : cat("signal ", signal);
}

}  // namespace muster
