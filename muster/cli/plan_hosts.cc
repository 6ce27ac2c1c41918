// The hosts are asked at the same time, each by a thread that waits for `muster devices --json`
// there. Together their answers are an inventory, of which the plan is made as of any other.
#include "muster/cli/plan_hosts.h"

#include <chrono>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/own_program.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/cluster/host_rendezvous.h"
#include "muster/cluster/host_watch.h"
#include "muster/cluster/ssh_command.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_start.h"

namespace muster {

namespace {

// A name that cannot be resolved here is one that only ssh knows.
bool is_here(const HostSpec& host) {
  try {
    return is_this_machine(without_user(host.name));
  } catch (const Error&) {
    return false;
  }
}

// A host that does not answer for so long is an error; each of the others is said to be waited for.
constexpr int kAnswerWithinSeconds = 60;
constexpr std::chrono::seconds kSayWhoIsWaitedFor{5};

[[noreturn]] void fail_without_answer(const HostSpec& host,
                                      const std::string& got,
                                      const std::string& next) {
  throw unavailable("host ",
                    host.name,
                    ": expected an answer of `muster devices --json` there within ",
                    kAnswerWithinSeconds,
                    " s, got ",
                    got,
                    "; ",
                    next);
}

// Runs the command and returns its output. Throws: unavailable if it fails; ssh, or the muster
// there, has then said why. `ssh` is empty for this host.
std::string answer_of(const HostSpec& host, const std::string& command, const Strings& ssh) {
  try {
    // In the foreground ssh can ask on the terminal, and Ctrl-C ends it.
    return output_of_shell(cat("timeout --foreground ", kAnswerWithinSeconds, " ", command),
                           host.name);
  } catch (const ShellFailed& failed) {
    constexpr int kTimeIsOver = 124;      // timeout's
    const int code = failed.exit_code();  // -1: a signal
    const std::string got = code < 0 ? "a signal" : cat("exit code ", code);
    fail_without_answer(host,
                        code == kTimeIsOver ? "none" : got,
                        ssh.empty()
                            ? "check that `muster devices` works here"
                            : text_or(advice_for_shell(code), advice_for_ssh(ssh, host.name)));
  }
}

// The start files of a shell may print something before the document, whose first line is "{".
std::string document_in(const std::string& answer, const HostSpec& host) {
  const size_t begin = answer.starts_with("{\n") ? 0 : answer.find("\n{\n");
  if (begin == npos)
    fail_without_answer(host,
                        in_quotes(printable(answer.substr(0, 80))),
                        "see what the start files of the shell there print");
  return answer.substr(begin);
}

// Returns what the host has, under the name that the job gives it.
Host ask_host(const HostSpec& host,
              bool here,
              const LaunchOptions& options,
              const RemoteOptions& remote) {
  const bool by_own_path = here || remote.remote_muster.empty();
  Strings argv = {by_own_path ? own_program() : remote.remote_muster, "devices", "--json"};
  const std::string slots =
      options.cpu_slots > 0 ? cat(options.cpu_slots) : get_env("MUSTER_CPU_SLOTS").value_or("");
  if (!slots.empty())
    argv.insert(argv.begin(), {"env", "MUSTER_CPU_SLOTS=" + slots});
  if (!here)
    argv = ssh_command(remote.ssh, host.name, argv);
  const std::string command = shell_command(argv) + " </dev/null";
  const auto answer = answer_of(host, command, here ? Strings() : remote.ssh);
  Host found = parse_inventory(document_in(answer, host), host.name).hosts.at(0);
  found.name = without_user(host.name);
  return found;
}

// Throws: invalid_argument for a machine that has two names in the list: its GPUs would be planned
// twice. A GPU's UUID tells; what has none of its own tells nothing.
void check_no_gpu_twice(const Plan& plan) {
  std::map<std::string, const RankPlan*> ranks;
  for (const RankPlan& rank : plan.ranks) {
    if (!rank.device.is_gpu() || rank.device.uuid.value.starts_with(kNoUniqueId))
      continue;
    const RankPlan& first = *ranks.emplace(rank.device.uuid.value, &rank).first->second;
    if (first.host_index != rank.host_index)
      throw invalid_argument("--hosts: expected each machine once, got ",
                             first.host,
                             " and ",
                             rank.host,
                             ", which both have ",
                             printable(rank.device.uuid.value),
                             "; name it once, with the ranks of both");
  }
}

}  // namespace

// Masks of the environment hide GPUs of this host alone.
int plan_on_hosts(const LaunchOptions& given, const RemoteOptions& remote) {
  const HostSpecs hosts = remote.hosts.empty() ? discover_hosts(remote.discovery) : remote.hosts;
  LaunchOptions options = given;
  options.request.hosts.clear();
  std::vector<std::future<Host>> answers;
  for (const HostSpec& host : hosts) {
    const bool here = is_here(host);
    options.request.hosts.push_back({.name = without_user(host.name),
                                     .nproc = host.nproc,
                                     .masks = here ? inherited_masks() : VisibilityMasks()});
    answers.push_back(std::async(std::launch::async, ask_host, host, here, options, remote));
  }
  Inventory inventory;
  inventory.source = "the hosts";
  for (const size_t i : indices_of(answers)) {
    if (answers[i].wait_for(kSayWhoIsWaitedFor) == std::future_status::timeout)
      log_info("waiting for the answer of host ", hosts[i].name);
    inventory.hosts.push_back(answers[i].get());
  }
  const Plan plan = place(inventory, options);
  check_no_gpu_twice(plan);
  show_dry_run(inventory, plan, options);
  return 0;
}

}  // namespace muster
