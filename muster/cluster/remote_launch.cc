// The launcher serves the store and coordinates, and starts an agent for each host: here as a
// child, and elsewhere by ssh. Agents get all that they need to know on their standard input. The
// ends of their processes say little, as an agent that has joined reports by the store; only an
// agent that ends without having joined is known by its process alone.
#include "muster/cluster/remote_launch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/folder_owner.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/own_program.h"
#include "muster/base/route.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/cluster/agent_spec.h"
#include "muster/cluster/coordinator_options.h"
#include "muster/cluster/coordinator_thread.h"
#include "muster/cluster/host_agent.h"
#include "muster/cluster/host_rendezvous.h"
#include "muster/cluster/host_watch.h"
#include "muster/cluster/ssh_command.h"
#include "muster/device/numbers.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_report.h"
#include "muster/launch/job_setup.h"
#include "muster/store/tcp_store.h"
#include "muster/supervise/child.h"
#include "muster/supervise/command_output.h"
#include "muster/supervise/feed.h"
#include "muster/supervise/kept_requests.h"
#include "muster/supervise/output.h"
#include "muster/supervise/process_set.h"

namespace muster {

namespace {

// After the grace period of the ranks their agents have this long to report and end.
constexpr std::chrono::seconds kBeyondTheRanksGrace{20};
constexpr std::chrono::seconds kAllTakeLeave{5};
constexpr int kHostWatch = -1;  // the number of its child; the agents' are numbered from 0
constexpr milliseconds kLookForTheEndEvery{250};
constexpr int kEndOfSsh = 255;  // the exit code of ssh itself; others are those of its command

// A signal ends the process of this machine: ssh passes on none that has ended its command.
bool is_of_ssh(const ChildExit& exit) {
  return exit.signal != 0 || exit.exit_code == kEndOfSsh || !exit.failed();
}

// Asks --host-discovery for the first hosts, where none are listed. Blocking: until it has
// answered.
RemoteOptions with_hosts(RemoteOptions remote, const ClusterOptions& cluster) {
  if (remote.hosts.empty())
    remote.hosts = discover_hosts(remote.discovery, cluster.join_timeout);
  return remote;
}

class RemoteJob {
 public:
  RemoteJob(const LaunchOptions& options,
            const ClusterOptions& cluster,
            const RemoteOptions& remote)
      : options_(options),
        cluster_(cluster),
        remote_(with_hosts(remote, cluster)),  // before signals wait to be read
        processes_({.stop_signals = options.stop_signals, .goes_on_because = kGoesOnBecause}) {
    if (remote_.ssh.empty())
      remote_.ssh = {"ssh"};
    const auto num_hosts = int_size(remote_.hosts);
    if (cluster_.max_hosts <= 1)
      cluster_.min_hosts = cluster_.max_hosts = num_hosts;
    if (num_hosts < cluster_.min_hosts && remote_.discovery.empty()) {
      throw invalid_argument("--nnodes: expected at most ",
                             plural(num_hosts, "host"),
                             ", since no more are listed, got ",
                             cluster_.min_hosts);
    }
    find_out_where_they_are();
    serve();
  }

  // Blocking: until the job is over and all agents have ended. Returns the exit code.
  int run() {
    output_ = std::make_unique<Output>(processes_.loop());
    std::optional<TimePoint> until;
    if (options_.time_limit)
      until = Clock::now() + *options_.time_limit;
    for (const HostSpec& host : remote_.hosts)
      start(host);
    watch_discovery();
    watch_for_the_end();
    const WaitResult ended =
        processes_.wait_all({.stop_on_failure = false,
                             .grace = options_.shutdown_timeout + kBeyondTheRanksGrace,
                             .on_exit = [this](const ChildExit& exit) { on_exit(exit); },
                             .on_stop = [this](int signal) { on_stop(signal); },
                             .pass_on = [this](int signal) { pass_on(signal); }});
    output_->finish([&] { return ended.stopped_by != 0 || processes_.stop_requested() != 0; },
                    until);
    coordinator_->wait(kAllTakeLeave);
    return report(ended);
  }

 private:
  // The process here that stands for a host: the agent itself, or ssh.
  struct Agent {
    HostSpec host;
    std::string address;  // what the name stands for; empty: this machine
    std::unique_ptr<Feed> feed;
    bool running = false;
  };

  // The address of a host; empty: it is this machine. A name that does not resolve may be one of
  // ssh's configuration, so ssh is asked what it stands for.
  std::string address_of(const std::string& name) {
    std::string bare = without_user(name);
    try {
      return address_to_serve(bare).empty() ? bare : std::string();
    } catch (const Error&) {
      return text_or(address_in_ssh(name), bare);
    }
  }

  // Empty: ssh does not say. Not every --ssh knows -G.
  std::string address_in_ssh(const std::string& name) {
    const auto ask =
        cat(shell_command(remote_.ssh), " -G ", shell_quoted(name), " 2>/dev/null || true");
    try {
      for (const auto& line : split(output_of_command(ask, "--ssh"), '\n')) {
        if (line.starts_with("hostname "))
          return line.substr(9);
      }
    } catch (const Error& error) {
      log_debug(error.message());  // a signal that came ends the job in its turn
    }
    return "";
  }

  // A host behind a jump host, say, has a name that only ssh knows.
  static std::string own_address_towards(const std::string& name, const std::string& address) {
    try {
      return address_towards(address);
    } catch (const Error& error) {
      throw Error(error.code(),
                  cat(error.message(),
                      "; if only ssh knows '",
                      printable(name),
                      "', give this host's address there with --local-addr"));
    }
  }

  // The address under which the others reach this host: on the route to the first of them.
  void find_out_where_they_are() {
    for (const HostSpec& host : remote_.hosts) {
      const std::string address = address_of(host.name);
      addresses_[host.name] = address;
      if (address.empty() || !own_address_.empty())
        continue;
      own_address_ = cluster_.local_address.empty() ? own_address_towards(host.name, address)
                                                    : cluster_.local_address;
    }
    if (own_address_.empty())
      own_address_ = cluster_.local_address;
    if (own_address_.empty() && !remote_.discovery.empty())
      own_address_ = outward_address();  // others may follow
    if (own_address_.empty())
      own_address_ = "127.0.0.1";
  }

  // Serves the store on a free port, with a secret for this job alone, and coordinates.
  void serve() {
    check_local_address(cluster_.local_address);
    cluster_.secret = Secret::make();
    TcpServerOptions options{.secret = cluster_.secret};
    options.endpoint.host = own_address_;
    server_ = std::make_unique<TcpServer>(std::move(options));
    const std::string text = to_string(server_->endpoint());
    cluster_.endpoint = text.substr(std::string("tcp://").size());
    store_ = std::make_shared<TcpStore>(
        TcpStoreOptions{.endpoint = server_->endpoint(), .secret = cluster_.secret});
    rules_ = rules_of(options_, cluster_);
    if (hosts_are_fixed())
      rules_.host_names =
          mapped(remote_.hosts, [](const HostSpec& host) { return without_user(host.name); });
    check_folder_owner(run_dir());
    coordinator_ = std::make_unique<CoordinatorThread>(
        store_,
        rules_,
        planner_of(options_),
        CoordinatorThreadOptions{.silence = cluster_.silence, .notes_joins = true});
  }

  // Then the hosts are numbered as they are listed.
  bool hosts_are_fixed() const { return remote_.discovery.empty() && !cluster_.elastic(); }

  // The name of the folder is the same on every host.
  std::string run_dir() const { return text_or(options_.run_dir, "runs/" + rules_.run_folder); }

  // The whole of what the agent with this number has to know.
  AgentSpec spec_for(const Agent& agent, int number) const {
    AgentSpec spec{.launch = options_, .cluster = cluster_, .folder = current_folder()};
    if (agent.host.nproc)
      spec.launch.request.nproc_per_node = agent.host.nproc;
    spec.launch.run_dir = run_dir();
    spec.cluster.host_name = without_user(agent.host.name);
    if (hosts_are_fixed())
      spec.cluster.node_rank = number;
    if (!agent.address.empty())
      spec.environment = environment_to_send(own_environment());
    return spec;
  }

  // The agent's command: on this machine as a child, elsewhere by ssh.
  Strings command_for(const Agent& agent) const {
    if (agent.address.empty())
      return {own_program(), "agent"};
    const auto program = text_or(remote_.remote_muster, own_program());
    return ssh_command(remote_.ssh, agent.host.name, {program, "agent"});
  }

  // Starts the host's agent. Only the first agent gets the launcher's standard input, for rank 0.
  void start(const HostSpec& host) {
    const auto number = int_size(agents_);
    Agent& agent = *agents_.emplace_back(std::make_unique<Agent>());
    agent.host = host;
    if (!addresses_.contains(host.name))
      addresses_[host.name] = address_of(host.name);
    agent.address = addresses_[host.name];
    const AgentSpec spec = spec_for(agent, number);
    const Strings argv = command_for(agent);
    auto out = output_->open({.console_fd = STDOUT_FILENO, .whole_lines = true});
    auto err = output_->open({.console_fd = STDERR_FILENO, .whole_lines = true});
    Pipe pipe = open_pipe();
    processes_.spawn(number,
                     {.argv = argv,
                      .environment = own_environment(),
                      .stdin_fd = pipe.read_end.get(),
                      .stdout_fd = out.child_end.get(),
                      .stderr_fd = err.child_end.get()});
    agent.running = true;
    const bool has_standard_input = number == 0;
    agent.feed = std::make_unique<Feed>(
        processes_.loop(), std::move(pipe.write_end), to_line(spec), has_standard_input);
  }

  // An agent that has joined tells its end itself; one that has not is known by its ssh alone.
  void on_exit(const ChildExit& exit) {
    if (exit.id == kHostWatch)
      return;
    Agent& agent = *agents_.at(exit.id);
    agent.running = false;
    agent.feed.reset();
    const bool has_left = !exit.failed() && coordinator_->has_joined(without_user(agent.host.name));
    if (has_left || is_ending())
      return;
    const bool is_end_of_ssh = !agent.address.empty() && is_of_ssh(exit);
    const std::string what = describe_loss(agent, exit, is_end_of_ssh);
    if (can_do_without()) {
      log_warning(what);
      return;
    }
    coordinator_report({.kind = Report::Kind::stop,
                        .error = what,
                        .exit_code = is_end_of_ssh ? 1 : std::max(1, exit.exit_code)});
  }

  // Whether the job is over, or was told to end.
  bool is_ending() { return coordinator_->result() || processes_.stop_requested() != 0; }

  // Whether the job may go on with the hosts that are left, or that may still be discovered.
  bool can_do_without() const {
    const auto left =
        std::ranges::count_if(agents_, [](const auto& agent) { return agent->running; });
    return cluster_.elastic() && (left >= cluster_.min_hosts || !remote_.discovery.empty());
  }

  // Says of an agent that should not have ended how it did, and what to look at.
  std::string describe_loss(const Agent& agent, const ChildExit& exit, bool is_end_of_ssh) const {
    const std::string how = exit.signal != 0 ? cat(" was killed by ", signal_name(exit.signal))
                                             : cat(" ended with exit code ", exit.exit_code);
    const bool has_joined = coordinator_->has_joined(without_user(agent.host.name));
    const char* const too_early =
        is_end_of_ssh ? " before the agent there had joined" : " before it had joined";
    const std::string what = cat("host ",
                                 agent.host.name,
                                 ": ",
                                 is_end_of_ssh ? "ssh" : "its agent",
                                 how,
                                 has_joined ? "" : too_early);
    if (is_end_of_ssh)
      return cat(what, "; ", advice_for_ssh(remote_.ssh, agent.host.name));
    const bool is_elsewhere = !agent.address.empty();
    return has_joined || !is_elsewhere ? what
                                       : what + framed("; ", advice_for_shell(exit.exit_code));
  }

  // The first stop signal ends the job by its coordinator, so that all hosts end their ranks.
  void on_stop(int signal) {
    if (host_watch_)
      host_watch_->stop();
    coordinator_report({.kind = Report::Kind::stop, .stopped_by = signal});
  }

  // An ssh passes no signal on, and would end of it.
  void pass_on(int signal) { coordinator_report({.kind = Report::Kind::signal, .signal = signal}); }

  // The launcher reports as hosts do, in its own name.
  void coordinator_report(Report report) {
    report.from = "launcher";
    report.number = next_report_++;
    try {
      store_->append(kReports, to_text(report));
    } catch (const Error& error) {
      log_error(error.message());
    }
  }

  // Agents are started on new hosts as they appear. Hosts that go away end by themselves, or are
  // told to by the one who took them away.
  void start_new(const HostSpecs& hosts) {
    if (is_ending())
      return;
    for (const HostSpec& host : hosts) {
      const bool runs_there = any_of(agents_, [&](const auto& agent) {
        return agent->host.name == host.name && agent->running;
      });
      if (runs_there || ++starts_[host.name] > cluster_.max_host_failures)
        continue;
      log_info("host ", host.name, " is new; starting an agent there");
      start(host);
    }
  }

  // Without --host-discovery the hosts are those that were listed.
  void watch_discovery() {
    if (remote_.discovery.empty())
      return;
    host_watch_ = std::make_unique<HostWatch>(
        processes_, kHostWatch, remote_.discovery, [this](const auto& hosts) { start_new(hosts); });
  }

  // When the job is over, an ssh whose host can no longer be reached would go on for minutes.
  void watch_for_the_end() {
    processes_.loop().call_at(Clock::now() + kLookForTheEndEvery, [this] {
      if (!coordinator_->result())
        return watch_for_the_end();
      if (host_watch_)
        host_watch_->stop();
      processes_.loop().call_at(Clock::now() + kAllTakeLeave, [this] { processes_.end_all_now(); });
    });
  }

  // The exit code of a job that ended before its coordinator had ended it.
  static int report_no_order(const WaitResult& ended) {
    if (ended.stopped_by == 0) {
      log_error("no host is left");
      return 1;
    }
    log_error("stopped by ", signal_name(ended.stopped_by));
    return 128 + ended.stopped_by;
  }

  // Says how the job ended, for all hosts: their agents say nothing of it. Returns the exit code.
  int report(const WaitResult& ended) {
    const auto order = coordinator_->result();
    for (const auto& survivor : ended.survivors)
      log_error("could not end ", survivor);
    if (!order)
      return report_no_order(ended);
    const bool stopped = order->exit_code == kStoppedExitCode && have_stopped(order->exits);
    if (first_failure(order->exits) != nullptr && !stopped) {
      JobFacts job;
      job.run_id = options_.run_id;
      job.restart_count = order->restart_count;
      job.run_dir = absolute_path(run_dir());
      job.work_dir = job.run_dir;
      job.log_dir = job.run_dir + "/logs";
      std::error_code ignored;
      std::filesystem::create_directories(job.run_dir, ignored);
      report_failure(order->exits, job, attempt_of(order->round), options_.max_restarts);
    }
    if (!order->reason.empty())
      log(stopped ? LogLevel::info : LogLevel::error, order->reason);
    return order->exit_code;
  }

  LaunchOptions options_;
  ClusterOptions cluster_;
  RemoteOptions remote_;
  ProcessSet processes_;
  std::map<std::string, std::string> addresses_;  // of hosts, by name
  std::map<std::string, int> starts_;
  std::string own_address_;
  std::unique_ptr<TcpServer> server_;
  SharedStore store_;
  CoordinatorRules rules_;
  std::unique_ptr<CoordinatorThread> coordinator_;
  std::unique_ptr<Output> output_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::unique_ptr<HostWatch> host_watch_;
  int next_report_ = 1;
};

}  // namespace

int run_on_hosts(const LaunchOptions& options,
                 const ClusterOptions& cluster,
                 const RemoteOptions& remote) {
  const KeptRequests kept;
  check_launch(options);
  check_folders(options);
  return RemoteJob(options, cluster, remote).run();
}

}  // namespace muster
