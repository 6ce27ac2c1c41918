#include "muster/cluster/host_discovery.h"

#include <sys/wait.h>

#include <cerrno>
#include <cstdio>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/cluster/remote_launch.h"

namespace muster {

namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

struct Said {
  int status = -1;
  std::string text;
};

Said run_in_shell(const std::string& command) {
  Said said;
  FILE* const pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return said;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    if (said.text.size() < kMaxBytes) said.text.append(buffer, n);
  }
  said.status = ::pclose(pipe);
  return said;
}

}  // namespace

std::vector<std::string> lines_of(const std::vector<std::string>& argv) {
  std::string command;
  for (const std::string& arg : argv) command += shell_quoted(arg) + " ";
  return split(run_in_shell(command + "2>/dev/null").text, '\n');
}

std::vector<HostSpec> discover_hosts(const std::string& command) {
  const Said said = run_in_shell(command);
  if (said.status != 0) {
    throw Error(ErrorCode::io, cat("--host-discovery: expected '", command, "' to end well, got ",
                                   WIFEXITED(said.status) ? cat("exit code ", WEXITSTATUS(said.status))
                                                          : std::string("a signal")));
  }
  return parse_hostfile(said.text, cat("what '", command, "' printed"));
}

}  // namespace muster
