// A job of several hosts is started in one of three ways: by one command that reaches the others
// over ssh (--hosts, --hostfile, --host-discovery), by a command on each host that says where they
// meet (--nnodes, --rdzv-endpoint), or by a scheduler whose variables tell the hosts
// (detect_cluster). Flags come before variables.
#include "muster/cli/cluster_flags.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/cli/host_port.h"
#include "muster/cluster/detect.h"
#include "muster/cluster/ssh_command.h"
#include "muster/cluster/switch_file.h"
#include "muster/placement/network_order.h"

namespace muster {

namespace {

// More hosts than this are a slip of the hand.
constexpr int kMaxHosts = 100'000;

// Reads --nnodes: "2" or "2:8".
void set_numbers_of_hosts(const std::string& text, ClusterOptions& options) {
  const auto parts = split(text, ':');
  const auto low = parse_number(parts[0], 1, kMaxHosts);
  const auto high = parse_number(parts.back(), low.value_or(1), kMaxHosts);
  if (parts.size() > 2 || !low || !high)
    throw bad_flag(
        "--nnodes", cat("a number, or MIN:MAX with 1 <= MIN <= MAX <= ", kMaxHosts), text);
  options.min_hosts = *low;
  options.max_hosts = *high;
}

// Reads --rdzv-conf: "a=1,b=2".
StringMap parse_conf(const std::string& text) {
  StringMap values;
  if (text.empty())
    return values;
  for (const auto& piece : split(text, ',')) {
    const size_t equals = piece.find('=');
    if (equals == npos || equals == 0)
      throw bad_flag(
          "--rdzv-conf", "NAME=VALUE pairs as in join_timeout=600,last_call_timeout=30", piece);
    const std::string_view name = trim(std::string_view(piece).substr(0, equals));
    const std::string_view value = trim(std::string_view(piece).substr(equals + 1));
    if (!values.emplace(name, value).second)
      throw bad_flag("--rdzv-conf", cat("each name once, not ", name, " twice"), text);
  }
  return values;
}

int64_t attempts_to_keep_alive(const StringMap& conf) {
  constexpr auto kDefault = "3";
  const std::string text = find_or(conf, "keep_alive_max_attempt", kDefault);
  const auto number = parse_number(text, 1, 1000);
  if (!number)
    throw bad_flag("--rdzv-conf", "keep_alive_max_attempt from 1 to 1000", text);
  return *number;
}

// Numbers are seconds, as in torchrun; muster's durations (2m) are accepted too.
void set_times(const std::string& text, ClusterOptions& options) {
  const auto values = parse_conf(text);
  const auto time_of = [&](const char* name, milliseconds& time) {
    const std::string* const value = value_at(values, name);
    if (value == nullptr)
      return;
    time = parse_duration(*value, cat("--rdzv-conf ", name));
    if (time < milliseconds(0))
      throw bad_flag("--rdzv-conf", cat(name, " of 0 or more"), *value);
  };
  time_of("timeout", options.join_timeout);
  time_of("join_timeout", options.join_timeout);
  time_of("last_call_timeout", options.last_call);
  milliseconds interval(5'000);
  time_of("keep_alive_interval", interval);
  options.silence = Silence(interval * attempts_to_keep_alive(values));
  if (options.silence.limit() < Silence::kLeast) {
    throw bad_flag("--rdzv-conf",
                   "keep_alive_interval times keep_alive_max_attempt of 4 s or more",
                   text,
                   "a slow moment would be taken for a dead host");
  }
}

std::string endpoint_text(const HostPort& endpoint, int default_port) {
  return cat(in_brackets(endpoint.host), ":", endpoint.port.value_or(default_port));
}

// Throws: invalid_argument for port 0, since no other host knows a port that this one would choose.
HostPort meeting_point(const std::string& text) {
  const HostPort endpoint = parse_host_port(text, "--rdzv-endpoint");
  if (endpoint.port == 0)
    throw bad_flag("--rdzv-endpoint",
                   "a port that is the same on every host",
                   text,
                   cat("as in ", endpoint.host, ":29400"));
  return endpoint;
}

// Throws: invalid_argument for an address that means all of those that a host has: the others would
// be told to come to themselves. With --local-addr the host with node rank 0 tells them another.
void check_leads_to_one_host(const HostPort& endpoint,
                             const RunFlags& flags,
                             const ClusterOptions& options) {
  const bool serves = options.backend == "static" && options.node_rank == 0;
  const bool is_told = serves && !flags.local_addr.empty();
  if (is_told || !is_one_of(endpoint.host, "0.0.0.0", "::", "*"))
    return;
  throw bad_flag(flags.rdzv_endpoint.empty() ? "--master-addr" : "--rdzv-endpoint",
                 "the address of the host with node rank 0 that the others reach",
                 text_or(flags.rdzv_endpoint, flags.master_addr),
                 cat("as in 10.0.0.1:29400, the same on every host",
                     serves ? ", or add --local-addr on node rank 0" : ""));
}

// The defaults are torchrun's, and etcd's.
int default_port_of(const std::string& backend) {
  static constexpr std::pair<std::string_view, int> kPorts[] = {
      {"static", 29500}, {"c10d", 29400}, {"etcd", 2379}};
  return lookup(kPorts, backend, 0);
}

// torchrun lets --master-addr name the meeting point too, but only for static.
void set_endpoint(const RunFlags& flags, ClusterOptions& options) {
  const bool is_static = options.backend == "static";
  const int default_port = default_port_of(options.backend);
  if (options.backend == "etcd" && !flags.rdzv_endpoint.empty()) {
    const auto servers = mapped(split(flags.rdzv_endpoint, ','), [&](const auto& server) {
      return endpoint_text(meeting_point(server), default_port);
    });
    options.endpoint = join(servers, ",");
  } else if (!flags.rdzv_endpoint.empty()) {
    const HostPort endpoint = meeting_point(flags.rdzv_endpoint);
    check_leads_to_one_host(endpoint, flags, options);
    options.endpoint = endpoint_text(endpoint, default_port);
  } else if (is_static && !flags.master_addr.empty()) {
    const int port = flags.master_port.value_or(default_port);
    check_leads_to_one_host({flags.master_addr, port}, flags, options);
    options.endpoint = endpoint_text({flags.master_addr, port}, default_port);
  } else {
    throw bad_flag("--rdzv-endpoint",
                   "the address of the host with node rank 0, as in 10.0.0.1:29400",
                   "",
                   "several hosts (--nnodes) must know where to meet");
  }
}

// Whether flags list hosts to reach. With --inventory, --hosts chooses among the hosts of the file,
// and none is reached.
bool lists_hosts(const RunFlags& flags) {
  return (!flags.hosts.empty() || !flags.hostfile.empty()) && flags.inventory.empty();
}

// Whether this command starts the other hosts' agents itself.
bool is_remote(const RunFlags& flags) {
  return lists_hosts(flags) || !flags.host_discovery.empty();
}

// Whether the command line says which hosts there are. A scheduler's variables then do not count.
bool says_which_hosts(const RunFlags& flags) {
  const bool has_number = flags.nnodes != RunFlags().nnodes || flags.standalone;
  const bool has_place =
      flags.node_rank || !flags.rdzv_endpoint.empty() || !flags.master_addr.empty();
  if (has_number || has_place || is_remote(flags))
    return true;
  return flags.dry_run || !flags.inventory.empty();
}

// The names in --rdzv-conf are torchrun's.
void set_etcd(const RunFlags& flags, ClusterOptions& options) {
  if (options.backend != "etcd")
    return;
  if (flags.rdzv_id == "none") {
    throw bad_flag("--rdzv-id",
                   "a name for the job in etcd that no other job has, the same on every host",
                   "",
                   "as in --rdzv-id run-42");
  }
  const auto conf = parse_conf(flags.rdzv_conf);
  options.etcd_protocol = find_or(conf, "protocol", options.etcd_protocol);
  options.etcd_ca_file = find_or(conf, "cacert");
  options.etcd_cert_file = find_or(conf, "cert");
  options.etcd_key_file = find_or(conf, "key");
  if (!is_one_of(options.etcd_protocol, "http", "https"))
    throw bad_flag("--rdzv-conf", "protocol http or https", options.etcd_protocol);
}

// Sets the options that all ways of meeting have.
void set_common(const RunFlags& flags, ClusterOptions& options) {
  set_times(flags.rdzv_conf, options);
  options.job = flags.rdzv_id;
  set_etcd(flags, options);
  options.local_address = flags.local_addr;
  options.secret_file = flags.secret_file;
  options.no_auth = flags.no_auth;
  options.max_host_failures = flags.max_host_failures;
}

// Throws: invalid_argument for flags that need a host to be alone.
void check_alone(const RunFlags& flags) {
  if (!flags.inventory.empty())
    throw bad_flag("--inventory",
                   "none where several hosts take part",
                   flags.inventory,
                   "each host finds its own devices");
  if (!flags.wait.empty())
    throw bad_flag("--wait",
                   "none where several hosts take part",
                   flags.wait,
                   "a host whose GPUs are leased ends the job, and says by whom");
}

// Throws: invalid_argument for flags that say how to reach hosts, if none are named.
void check_has_hosts(const RunFlags& flags) {
  if (!flags.hosts.empty() || !flags.hostfile.empty() || !flags.host_discovery.empty())
    return;
  const auto check = [](const char* flag, const std::string& value) {
    if (!value.empty())
      throw bad_flag(flag,
                     "--hosts, --hostfile or --host-discovery beside it",
                     value,
                     "say where ranks run, or leave it out");
  };
  check("--ssh", flags.ssh);
  check("--remote-muster", flags.remote_muster);
}

void check_rdzv_backend(const RunFlags& flags) {
  if (!is_one_of(flags.rdzv_backend, "static", "c10d", "etcd"))
    throw bad_flag("--rdzv-backend", "static, c10d or etcd", flags.rdzv_backend);
}

// Throws: invalid_argument for flags that only make sense with several hosts.
void check_one_host(const RunFlags& flags, bool several) {
  if (flags.standalone && several)
    throw bad_flag("--standalone", "--nnodes 1 beside it", flags.nnodes, "leave one of them out");
  if (flags.node_rank.value_or(0) != 0)
    throw bad_flag("--node-rank", "0 of one host (--nnodes 1)", cat(*flags.node_rank));
}

// Returns this host's number; nothing if the hosts are numbered when they meet. 0 is torchrun's
// default for static hosts.
std::optional<int> node_rank_of(const RunFlags& flags, const ClusterOptions& options) {
  if (flags.node_rank)
    return flags.node_rank;
  const auto found = node_rank_of_environment();
  if (!found && options.backend == "static")
    return 0;
  return found;
}

// Sets where this host meets the others, and its number among them.
void set_meeting(const RunFlags& flags, ClusterOptions& options) {
  options.node_rank = node_rank_of(flags, options);
  if (options.node_rank && (*options.node_rank < 0 || *options.node_rank >= options.max_hosts)) {
    throw bad_flag("--node-rank",
                   cat("0 to ", options.max_hosts - 1, " for --nnodes ", flags.nnodes),
                   cat(*options.node_rank));
  }
  set_endpoint(flags, options);
}

// Lists with the same number of ranks for each host have blocks of hosts that a mesh keeps
// together.
HostSpecs in_network_order(const HostSpecs& hosts, const RunFlags& flags) {
  const auto names = mapped(hosts, [](const HostSpec& host) { return without_user(host.name); });
  auto ranks = parse_int(flags.nproc_per_node);
  if (hosts.front().nproc)
    ranks = *hosts.front().nproc;
  const bool are_alike =
      all_of(hosts, [&](const HostSpec& host) { return host.nproc == hosts.front().nproc; });
  Int64s blocks;
  if (are_alike && !flags.mesh.empty())
    blocks = blocks_of_mesh(parse_axes(flags.mesh), ranks, std::ssize(hosts));
  return mapped(network_order(flags.switches, names, blocks),
                [&](const size_t at) { return hosts[at]; });
}

}  // namespace

// The file may be a pipe, so it is read once.
void read_topology(RunFlags& flags) {
  if (!flags.topology.empty())
    flags.switches = read_named("--topology", [&] { return read_switch_file(flags.topology); });
}

// A list on the command line and a file of hosts cannot be one list.
HostSpecs hosts_in(const std::string& hosts, const std::string& hostfile) {
  if (!hosts.empty() && !hostfile.empty())
    throw bad_flag("--hosts", "no --hostfile beside it", hosts, "leave one of them out");
  return hostfile.empty() ? parse_host_list(hosts, "--hosts")
                          : read_named("--hostfile", [&] { return read_hostfile(hostfile); });
}

HostSpecs listed_hosts(const RunFlags& flags) {
  const HostSpecs hosts = hosts_in(flags.hosts, flags.hostfile);
  return flags.topology.empty() ? hosts : in_network_order(hosts, flags);
}

// The hosts are found by this command, so each host must not have a command of its own.
std::optional<RemoteOptions> to_remote_options(const RunFlags& flags) {
  if (!is_remote(flags))
    return std::nullopt;
  const bool listed = lists_hosts(flags);
  if (listed && !flags.host_discovery.empty())
    throw bad_flag("--host-discovery",
                   "no --hosts or --hostfile beside it",
                   flags.host_discovery,
                   "leave the others out");
  check_alone(flags);
  if (flags.node_rank || !flags.rdzv_endpoint.empty()) {
    throw bad_flag(
        "--hosts",
        "no --node-rank or --rdzv-endpoint beside it",
        flags.hosts,
        "either one command with --hosts starts all hosts, or each host has a command of its own");
  }
  RemoteOptions remote{.discovery = flags.host_discovery, .remote_muster = flags.remote_muster};
  if (listed)
    remote.hosts = listed_hosts(flags);
  const auto ssh = text_or(flags.ssh, get_env("MUSTER_SSH").value_or("ssh"));
  remote.ssh = split(ssh, ' ');  // as a shell would split it without quotes
  std::erase(remote.ssh, "");
  if (remote.ssh.empty())
    throw bad_flag(
        "--ssh", "a command that starts a command on a host", ssh, "leave it out for ssh");
  return remote;
}

// An unknown name is no error, because scripts for torchrun pass what its back ends know.
void warn_of_unknown_conf(const RunFlags& flags) {
  static const StringSet kKnown = {"timeout",
                                   "join_timeout",
                                   "last_call_timeout",
                                   "keep_alive_interval",
                                   "keep_alive_max_attempt",
                                   "protocol",
                                   "cacert",
                                   "cert",
                                   "key",
                                   // torchrun's names of what muster does another way
                                   "close_timeout",
                                   "heartbeat_timeout",
                                   "is_host",
                                   "read_timeout",
                                   "store_type",
                                   "use_libuv"};
  for (const auto& [name, value] : parse_conf(flags.rdzv_conf)) {
    if (!kKnown.contains(name))
      log_warning("--rdzv-conf: '",
                  printable(name),
                  "' is not a known name and has no effect (known: ",
                  join(kKnown, ", "),
                  ")");
  }
}

// These are flags of jobs on several hosts. Scripts for torchrun may pass them everywhere, so that
// they are no error; nor are times that would be one there.
void warn_of_flags_for_several_hosts(const RunFlags& flags) {
  const std::pair<const char*, bool> given[] = {
      {"--secret-file", !flags.secret_file.empty()},
      {"--no-auth", flags.no_auth},
      {"--local-addr", !flags.local_addr.empty()},
      {"--max-host-failures", flags.max_host_failures != RunFlags().max_host_failures}};
  Strings unused;
  for (const auto& [flag, is_given] : given) {
    if (is_given)
      unused.emplace_back(flag);
  }
  if (!unused.empty())
    log_warning(join(unused, ", "), ": of no effect on one host; leave out what is for several");
  try {
    ClusterOptions of_nobody;
    set_times(flags.rdzv_conf, of_nobody);
  } catch (const Error& error) {
    log_warning(error.message(), " (of no effect on one host)");
  }
}

// A host that is alone has no cluster; a scheduler's variables count only if no flag says where.
std::optional<ClusterOptions> to_cluster_options(const RunFlags& flags) {
  check_has_hosts(flags);
  ClusterOptions options;
  set_numbers_of_hosts(flags.nnodes, options);
  check_rdzv_backend(flags);
  parse_conf(flags.rdzv_conf);  // a wrong one is an error on one host too
  if (!says_which_hosts(flags) && detect_cluster(options)) {
    check_alone(flags);
    set_common(flags, options);
    return options;
  }
  const bool several = options.max_hosts > 1 || is_remote(flags);
  if (!several || flags.standalone) {
    check_one_host(flags, several);
    return std::nullopt;
  }
  check_alone(flags);
  options.backend = flags.rdzv_backend;
  // Hosts that come and go cannot have fixed numbers.
  if (options.backend == "static" && options.elastic())
    options.backend = "c10d";
  // The command that reaches hosts over ssh is itself the meeting point.
  if (!is_remote(flags))
    set_meeting(flags, options);
  set_common(flags, options);
  return options;
}

}  // namespace muster
