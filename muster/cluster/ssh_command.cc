// Options are given only to ssh itself: --ssh may name any program that takes a host and a command.
#include "muster/cluster/ssh_command.h"

#include "muster/base/shell.h"
#include "muster/base/strings.h"

namespace muster {

std::string without_user(const std::string& host) {
  return host.substr(host.find('@') + 1);  // of a name without '@' all
}

// `exec` spares a shell on the other host.
Strings ssh_command(const Strings& ssh, const std::string& host, const Strings& program) {
  Strings argv = ssh;
  if (argv[0] == "ssh" || argv[0].ends_with("/ssh"))
    argv.insert(argv.end(), {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"});
  argv.insert(argv.end(), {host, "exec " + shell_command(program)});
  return argv;
}

std::string advice_for_ssh(const Strings& ssh, const std::string& host) {
  return cat("check that `", join(ssh, " "), " ", host, " echo hello` prints hello");
}

}  // namespace muster
