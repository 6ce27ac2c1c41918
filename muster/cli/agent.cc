// The agent's whole task comes in one line on standard input, not in arguments, which every user of
// the host could read.
#include "muster/cli/commands.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "muster/base/strings.h"
#include "muster/cluster/agent_spec.h"
#include "muster/cluster/host_agent.h"
#include "muster/report/host_samples.h"

namespace muster {

namespace {

// A spec has the arguments and the environment of all of the host's ranks.
constexpr size_t kMaxSpecBytes = size_t{16} << 20;

// Reads a line byte by byte, because what follows it is rank 0's standard input. The line holds a
// secret, and a text that grows would leave copies of it behind, so its memory is reserved at once.
std::string read_line() {
  std::string line;
  line.reserve(kMaxSpecBytes);
  char c = 0;
  while (line.size() < kMaxSpecBytes) {
    const ssize_t n = ::read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0 || c == '\n')
      break;
    line += c;
  }
  return line;
}

}  // namespace

void add_agent(CLI::App& app, int* exit_code) {
  auto* const command =
      app.add_subcommand("agent", "One host's part of a job that `muster run --hosts` started");
  command->group("");  // not shown
  command->callback([exit_code] {
    std::string line = read_line();
    const AgentSpec spec = agent_spec_from(line);
    // The secret has been taken out of the line.
    OPENSSL_cleanse(line.data(), line.size());
    for (const auto& [name, value] : spec.environment)
      ::setenv(name.c_str(), value.c_str(), 1);
    // Paths in the program's arguments are meant from the folder in which the job was started.
    if (!spec.folder.empty() && ::chdir(spec.folder.c_str()) != 0) {
      throw failed_precondition(
          "host ",
          spec.cluster.host_name,
          ": expected the folder '",
          printable(spec.folder),
          "', where the job was started, to be there too (",
          std::strerror(errno),
          "); share it between the hosts, or start the job from one that they all have");
    }
    *exit_code = run_host_agent(spec.launch, spec.cluster, own_rank_sampler());
  });
}

}  // namespace muster
