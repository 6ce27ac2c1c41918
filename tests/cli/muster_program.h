// Runs the real `muster` program for a test: arguments and environment in, exit code and output
// out. It sees no GPU and nothing of the tester's environment.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/rank_env.h"
#include "muster/supervise/child.h"
#include "tests/device/scratch.h"

namespace muster {

// How it ended. `code` is as a shell gives it.
struct Ran {
  int code = -1;
  std::string out;
  std::string err;
};

struct ProgramSettings {
  std::string program = MUSTER_BINARY_DIR "/bin/muster";
  Environment environment = {};  // beside PATH, HOME and CUDA_VISIBLE_DEVICES
  std::string input = {};
  std::chrono::seconds timeout{60};
  int stdout_fd = -1;  // -1: read into Ran::out
  int stderr_fd = -1;  // -1: kept for Ran::err
};

class Program {
 public:
  Program(std::vector<std::string> args, const ScratchFolder& folder, ProgramSettings settings = {})
      : settings_(std::move(settings)),
        err_(std::tmpfile(), ::fclose),
        deadline_(settings_.timeout) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    out_ = Fd(ends[0]);
    const Fd write_end(ends[1]);
    const std::unique_ptr<FILE, int (*)(FILE*)> input(std::tmpfile(), ::fclose);
    std::fputs(settings_.input.c_str(), input.get());
    std::fseek(input.get(), 0, SEEK_SET);
    Environment variables = {{"PATH", get_env("PATH").value_or("/usr/bin:/bin")},
                             {"HOME", folder.path()},
                             {"CUDA_VISIBLE_DEVICES", ""}};
    for (const auto& [name, value] : settings_.environment)
      variables[name] = value;
    args.insert(args.begin(), settings_.program);
    child_ = spawn_child(
        {.argv = std::move(args),
         .environment = std::move(variables),
         .working_directory = folder.path(),
         .stdin_fd = ::fileno(input.get()),
         .stdout_fd = settings_.stdout_fd >= 0 ? settings_.stdout_fd : write_end.get(),
         .stderr_fd = settings_.stderr_fd >= 0 ? settings_.stderr_fd : ::fileno(err_.get()),
         .inherit_fds = {}});
  }

  pid_t pid() const { return child_.pid; }

  // Reads standard output until it contains `text` and returns everything read so far.
  const std::string& read_until(const std::string& text) {
    while (ran_.out.find(text) == std::string::npos && read_some()) {
    }
    EXPECT_NE(ran_.out.find(text), std::string::npos) << ran_.out;
    return ran_.out;
  }

  // Takes a page of its standard output, if there is one, and leaves the rest: a reader that is
  // slow, but has not stopped.
  void read_a_page() { read_some(4096, std::chrono::milliseconds(0)); }

  Ran finish() {
    while (read_some()) {
    }
    pollfd poll = {.fd = child_.pidfd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, static_cast<int>(deadline_.left().count())) != 1) {
      ADD_FAILURE() << "still running after " << settings_.timeout.count() << " s: killed";
      ::kill(child_.pid, SIGKILL);
    }
    int status = 0;
    ::waitpid(child_.pid, &status, 0);
    ran_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    std::fseek(err_.get(), 0, SEEK_SET);
    char buffer[4096];
    for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), err_.get())) > 0;)
      ran_.err.append(buffer, n);
    return ran_;
  }

 private:
  bool read_some() { return read_some(65536, deadline_.left()); }

  bool read_some(size_t most, std::chrono::milliseconds patience) {
    pollfd poll = {.fd = out_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, static_cast<int>(patience.count())) != 1)
      return false;
    char buffer[65536];
    const ssize_t n = ::read(out_.get(), buffer, std::min(most, sizeof(buffer)));
    if (n > 0)
      ran_.out.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  ProgramSettings settings_;
  Ran ran_;
  Fd out_;
  std::unique_ptr<FILE, int (*)(FILE*)> err_;
  Deadline deadline_;
  Child child_;
};

// The words of `muster run` that has a shell run `script` as every rank.
inline std::vector<std::string> sh(std::vector<std::string> flags, const std::string& script) {
  flags.insert(flags.begin(), "run");
  flags.insert(flags.end(), {"sh", "-c", script});
  return flags;
}

// A shell that runs `script`, to which $0 is the real program.
inline Program from_shell(const std::string& script, const ScratchFolder& folder) {
  return Program({"-c", script, ProgramSettings().program}, folder, {.program = "/bin/sh"});
}

// Words in front of those that another user is to run: another for each test's `place` and each
// running test, who has no process.
inline std::string as_another_user(int place) {
  const std::string user = cat(20'000 + place * 20'000 + ::getpid() % 20'000);
  return cat("setpriv --reuid ", user, " --regid ", user, " --clear-groups ");
}

// muster of such a user, who may have `limit` processes. That user may read nothing of the
// tester's, so it runs a copy.
inline Program with_few_processes(int limit,
                                  int place,
                                  const std::string& arguments,
                                  const ScratchFolder& folder) {
  EXPECT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  return from_shell(cat("cp \"$0\" copy && exec ",
                        as_another_user(place),
                        "prlimit --nproc=",
                        limit,
                        " ./copy ",
                        arguments),
                    folder);
}

// What a job with `--run-dir out` has left of its failure.
inline nlohmann::json failure_of(const ScratchFolder& folder) {
  return nlohmann::json::parse(read_file(folder.path() + "/out/failure.json"));
}

// Start to end.
inline Ran muster(std::vector<std::string> args,
                  const ScratchFolder& folder,
                  ProgramSettings settings = {}) {
  return Program(std::move(args), folder, std::move(settings)).finish();
}

// True when the process is gone within `limit`.
inline bool ends_within(const Fd& pidfd, std::chrono::milliseconds limit) {
  if (!pidfd.valid())
    return true;
  pollfd poll = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, static_cast<int>(limit.count())) == 1;
}

}  // namespace muster
