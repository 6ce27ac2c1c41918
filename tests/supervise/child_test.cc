#include "muster/supervise/child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/supervise/command_output.h"
#include "muster/supervise/signal_pipe.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

const char* const kPath = "/usr/local/bin:/usr/bin:/bin";

std::string write_program(const ScratchFolder& scratch,
                          const std::string& name,
                          const std::string& text) {
  const std::string path = scratch.write(name, text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

struct End {
  int status = 0;
  std::string out;
};

// Runs to the end with standard output caught.
End run_child(ChildOptions options) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  options.stdout_fd = write_end.get();
  options.environment.emplace("PATH", kPath);
  const Child child = spawn_child(options);
  write_end.reset();
  End end;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(read_end.get(), buffer, sizeof(buffer))) > 0;) {
    end.out.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(::waitpid(child.pid, &end.status, 0), child.pid);
  return end;
}

End run_shell(const std::string& script, ChildOptions options = {}) {
  options.argv = {"sh", "-c", script};
  return run_child(std::move(options));
}

int spawn_error_code(const ChildOptions& options) {
  try {
    const Child child = spawn_child(options);
    ::waitpid(child.pid, nullptr, 0);
  } catch (const SpawnError& error) {
    return error.exit_code();
  }
  return 0;
}

TEST(FindProgram, SearchesPathLikeAShell) {
  const ScratchFolder scratch;
  write_program(scratch, "tool", "#!/bin/sh\n");
  EXPECT_EQ(find_program("tool", cat("/nowhere:", scratch.path(), ":/bin")),
            scratch.path() + "/tool");
  EXPECT_EQ(find_program(scratch.path() + "/tool", ""), scratch.path() + "/tool");
}

TEST(FindProgram, SaysWhyNot) {
  const ScratchFolder scratch;
  scratch.write("data", "text");
  const auto code_and_text = [](const std::string& name, const std::string& path) {
    try {
      find_program(name, path);
    } catch (const SpawnError& error) {
      return cat(error.exit_code(), " ", error.what());
    }
    return std::string("found");
  };
  EXPECT_THAT(code_and_text("no-such-tool", "/bin"),
              HasSubstr("127 cannot start 'no-such-tool': not found in PATH"));
  EXPECT_THAT(code_and_text("data", scratch.path()), HasSubstr("126"));
  EXPECT_THAT(code_and_text(scratch.path() + "/data", ""), HasSubstr("chmod +x"));
  EXPECT_THAT(code_and_text(scratch.path(), ""), HasSubstr("126"));
  EXPECT_THAT(code_and_text(scratch.path() + "/gone/x", ""), HasSubstr("127"));
  EXPECT_THAT(code_and_text("", "/bin"), HasSubstr("127"));
}

TEST(SpawnChild, TellsExecErrorsBeforeItReturns) {
  const ScratchFolder scratch;
  EXPECT_EQ(
      spawn_error_code({.argv = {write_program(scratch, "no-interpreter", "#!/no/such/shell\n")}}),
      127);
  EXPECT_EQ(spawn_error_code({.argv = {write_program(scratch, "not-a-program", "plain text")}}),
            126);
  EXPECT_EQ(
      spawn_error_code({.argv = {"/bin/true"}, .environment = {}, .working_directory = "/no/such"}),
      126);
}

TEST(SpawnChild, GivesExactlyTheArgumentsEnvironmentAndFolder) {
  const ScratchFolder scratch;
  const End args = run_child({.argv = {"printf", "%s|", "a b", "$HOME", "", "*"}});
  EXPECT_EQ(args.out, "a b|$HOME||*|");
  ChildOptions options;
  options.environment = {{"ONLY", "this\nand that"}, {"PATH", kPath}};
  options.argv = {"env", "-0"};
  EXPECT_EQ(run_child(options).out, cat("ONLY=this\nand that", '\0', "PATH=", kPath, '\0'));
  options = {};
  options.working_directory = scratch.path();
  EXPECT_EQ(run_shell("pwd -P", options).out,
            std::filesystem::canonical(scratch.path()).string() + "\n");
}

// A signal's disposition for as long as this lives.
class Disposition {
 public:
  Disposition(int signal, void (*handler)(int)) : signal_(signal) {
    struct sigaction wanted = {};
    wanted.sa_handler = handler;
    ::sigaction(signal_, &wanted, &before_);
  }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;
  ~Disposition() { ::sigaction(signal_, &before_, nullptr); }

 private:
  int signal_;
  struct sigaction before_ = {};
};

constexpr uint64_t bit(int signal) {
  return uint64_t{1} << (signal - 1);
}

// The signals that `field` of /proc/self/status names in a new child, without the two (32 and 33)
// that the C library keeps to itself: no program can set those.
uint64_t child_signals(const std::string& field) {
  const std::string status = run_child({.argv = {"cat", "/proc/self/status"}}).out;
  const size_t at = status.find(cat(field, ":\t"));
  EXPECT_NE(at, std::string::npos) << status;
  return std::stoull(status.substr(at + field.size() + 2, 16), nullptr, 16) & ~(bit(32) | bit(33));
}

TEST(SpawnChild, StartsWithCleanSignals) {
  const Disposition hangup(SIGHUP, SIG_DFL);
  const Disposition interrupt(SIGINT, SIG_IGN);
  const Disposition pipe(SIGPIPE, SIG_IGN);
  sigset_t some;
  sigset_t old_mask;
  sigemptyset(&some);
  sigaddset(&some, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &some, &old_mask);
  EXPECT_EQ(child_signals("SigBlk"), 0U);
  EXPECT_EQ(child_signals("SigIgn"), 0U);
  ::pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
}

TEST(SpawnChild, KeepsNohup) {
  const Disposition hangup(SIGHUP, SIG_IGN);
  EXPECT_EQ(child_signals("SigIgn"), bit(SIGHUP));
}

TEST(SpawnChild, LeadsAProcessGroupOfItsOwn) {
  const End group = run_shell("echo $$ $(cut -d' ' -f5 /proc/$$/stat)");
  const auto words = split(trim(group.out), ' ');
  ASSERT_EQ(words.size(), 2U);
  EXPECT_EQ(words[0], words[1]);
}

TEST(SpawnChild, InheritsOnlyTheDescriptorsNamed) {
  const Fd kept(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const Fd other(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ChildOptions options;
  options.inherit_fds = {kept.get()};
  const std::string listing = run_shell(cat("[ -e /proc/self/fd/",
                                            kept.get(),
                                            " ] && echo kept; [ -e /proc/self/fd/",
                                            other.get(),
                                            " ] && echo leaked; readlink /proc/self/fd/0"),
                                        options)
                                  .out;
  EXPECT_EQ(listing, "kept\n/dev/null\n");
}

TEST(SpawnChild, DiesWithTheThreadThatStartedIt) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const Child child = spawn_child({.argv = {"/bin/sleep", "1000"}});
    write_all(ends[1], cat(child.pid, "\n"));
    ::kill(::getpid(), SIGKILL);
  }
  ::close(ends[1]);
  char text[32] = {};
  ASSERT_GT(::read(read_end.get(), text, sizeof(text) - 1), 0);
  ::waitpid(launcher, nullptr, 0);
  const Fd child(static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(text), 0)));
  if (child.valid()) {
    pollfd poll = {.fd = child.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&poll, 1, 20'000), 1) << "the child outlived its launcher";
  }
}

// The shell is the only process, and names its descriptors. What the tester has open is there too.
TEST(SpawnChild, HasNoSecondDescriptorOfItsStandardInput) {
  const auto descriptors = [](int stdin_fd) {
    return run_child({.argv = {"sh",
                               "-c",
                               "for n in 0 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$n ] && "
                               "echo $n; done; readlink /proc/$$/fd/0"},
                      .stdin_fd = stdin_fd})
        .out;
  };
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(descriptors(-1), descriptors(null.get()));
}

TEST(SignalName, KnowsNamesAndNumbers) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(99), "signal 99");
}

std::string output_error(const std::string& command, std::chrono::milliseconds patience) {
  try {
    return output_of_command(command, "--map-command", {}, patience);
  } catch (const Error& error) {
    return error.what();
  }
}

// The loop that would act on the signal waits for the answer.
TEST(CommandOutput, AStopSignalThatIsCaughtEndsIt) {
  const std::string me = cat(::getpid());
  {
    Ints stops = {SIGTERM};
    const SignalPipe caught(stops, {SIGUSR1});
    EXPECT_EQ(output_of_command(cat("kill -USR1 ", me, "; echo 1"), "--map-command"), "1\n");
    EXPECT_EQ(output_error(cat("kill -TERM ", me, "; sleep 600"), std::chrono::hours(1)),
              cat("--map-command: 'kill -TERM ",
                  me,
                  "; sleep 600' was not waited for, as SIGTERM came; start the job again"));
    EXPECT_THROW(output_of_command("echo 1", "--map-command"), AskedToStop) << "nor is another";
  }
  EXPECT_EQ(output_of_command("echo 1", "--map-command"), "1\n");
}

// A command of the user's is asked for a list; one that hangs is killed with what it has started.
TEST(CommandOutput, IsRefusedWhereTheCommandFailsOrHangs) {
  EXPECT_EQ(output_of_command("echo $A $B", "--flag", {{"A", "1"}, {"B", "2"}}), "1 2\n");
  const auto error_of = [](const std::string& command) {
    return output_error(command, std::chrono::milliseconds(200));
  };
  EXPECT_EQ(error_of("sleep 600; true"),
            "--map-command: expected 'sleep 600; true' to end within 200ms, got no end; correct "
            "the command");
  EXPECT_EQ(error_of("exit 3"), "--map-command: expected 'exit 3' to succeed, got exit code 3");
  EXPECT_EQ(error_of("kill -SEGV $$"),
            "--map-command: expected 'kill -SEGV $$' to succeed, got SIGSEGV");
  EXPECT_THAT(error_of("while :; do echo; sleep 0.01; done"), HasSubstr("to end within 200ms"));
  EXPECT_THAT(output_error("yes", std::chrono::hours(1)), HasSubstr("to print at most 1 MiB"));
}

// The command has a process group of its own, which a terminal's signals do not reach, and its
// shell waits for a process that nobody else knows.
TEST(CommandOutput, EndsWithTheProcessThatAsks) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    Pipe told = open_pipe();
    const pid_t launcher = ::fork();
    if (launcher == 0) {
      ::signal(signal, SIG_DFL);  // whoever runs the tests may ignore it
      ::fcntl(told.write_end.get(), F_SETFD, 0);
      const std::string name = cat(told.write_end.get());
      output_of_command(cat("echo >&", name, "; sleep 600; true"), "--map-command");
      ::_exit(0);
    }
    told.write_end.reset();
    char byte = 0;
    ASSERT_EQ(::read(told.read_end.get(), &byte, 1), 1);
    ::kill(launcher, signal);
    int status = 0;
    ::waitpid(launcher, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
    // The end of file comes when the last process of the command has ended.
    pollfd poll = {.fd = told.read_end.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&poll, 1, 20'000), 1) << "the command outlived " << signal_name(signal);
  }
}

}  // namespace
}  // namespace muster
