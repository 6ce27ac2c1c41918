// Three ways to meet: at an endpoint that one of the hosts serves, at the endpoint that a shared
// file names, and in etcd. Each ends with a connected store, the address of this host for the
// others, and the job's secret.
#include "muster/cluster/host_rendezvous.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env_count.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/pauses.h"
#include "muster/base/route.h"
#include "muster/base/runtime_folder.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/launch/port.h"
#include "muster/store/etcd_store.h"
#include "muster/store/socket.h"
#include "muster/store/tcp_store.h"

namespace muster {

namespace {

constexpr auto kUserSecret = "secret";
constexpr std::chrono::seconds kResolve{10};      // for an answer about a name
constexpr std::chrono::seconds kNameMayCome{60};  // for a name to become known

// Whether the address is this machine's: a socket can be bound to it.
bool is_here(const SocketAddress& address) {
  const Fd probe(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress any_port = address;
  if (address.storage.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(&any_port.storage)->sin_port = 0;
  if (address.storage.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&any_port.storage)->sin6_port = 0;
  return probe.valid() && ::bind(probe.get(), any_port.get(), any_port.size) == 0;
}

// The secret that this user's processes on this machine share. The first that needs it makes it.
Secret user_secret() {
  const auto path = default_runtime_folder();
  const Fd folder = open_runtime_folder(path, true);
  const std::string file = path + "/" + kUserSecret;
  const auto aside = name_aside(kUserSecret);
  if (::faccessat(folder.get(), kUserSecret, F_OK, 0) != 0) {
    {
      const Fd fresh(::openat(folder.get(),
                              aside.c_str(),
                              O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                              kKeptFile));
      if (!fresh.valid())
        fail_errno(errno, "cannot create '", file, "'");
      try {
        Secret::make().write_to(fresh.get(), "\n", file);
      } catch (const Error&) {
        ::unlinkat(folder.get(), aside.c_str(), 0);
        throw;
      }
    }
    // A link and no rename, so that the file of the process that came first stays.
    (void)!::linkat(folder.get(), aside.c_str(), folder.get(), kUserSecret, 0);
    ::unlinkat(folder.get(), aside.c_str(), 0);
  }
  return Secret::from_file(file);
}

// The store's advice is for a rank, whose launcher serves it.
std::string without_advice(const Error& error) {
  const auto* const unreachable = dynamic_cast<const ServerUnreachable*>(&error);
  return unreachable != nullptr ? unreachable->fact() : error.message();
}

// Throws: invalid_argument for what is no HOST:PORT.
Endpoint endpoint_of(const ClusterOptions& options) {
  return parse_endpoint("tcp://" + options.endpoint);
}

std::unique_ptr<TcpServer> server_at(const ClusterOptions& options,
                                     const Endpoint& at,
                                     const Secret& secret) {
  return std::make_unique<TcpServer>(TcpServerOptions{
      .endpoint = at, .secret = secret, .no_auth = options.no_auth, .job = options.job});
}

// ", which is in use by process 4711 (python3)", or empty. It looks through /proc.
std::string holder_text(int port) {
  const std::string holder = port == 0 ? "" : port_holder(port);
  return holder.empty() ? "" : cat(", which is in use by ", holder);
}

// Throws: unavailable, with words for the user, when the server cannot listen. Who has the port is
// named.
std::unique_ptr<TcpServer> serve(const ClusterOptions& options,
                                 const Endpoint& at,
                                 const Secret& secret) {
  try {
    return server_at(options, at, secret);
  } catch (const AddressInUse& error) {
    throw unavailable("rendezvous: expected a free port of this host, which has to serve it, got ",
                      at.port,
                      holder_text(at.port),
                      " (",
                      error.message(),
                      "); end what has it, or give every host another port (--rdzv-endpoint)");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable)
      throw;
    throw unavailable("rendezvous: this host has to serve it, and cannot: ", error.message());
  }
}

// Connects as soon as somebody serves there. If `is_served_here`, nothing lies between, and only a
// slow machine makes it wait. `port_here`: of this host, and somebody else's; 0: none.
// Throws: unavailable when nobody serves in time; invalid_argument for another secret;
// failed_precondition for another job.
SharedStore connect(const ClusterOptions& options,
                    const Endpoint& endpoint,
                    const Secret& secret,
                    bool is_served_here,
                    int port_here = 0) {
  const Silence silence = options.silence;
  const milliseconds answer = is_served_here ? silence.limit() : silence.answer();
  const Deadline deadline(options.join_timeout);
  // The last try has this long too: the user is told what it says.
  constexpr milliseconds kLeast{1000};
  bool said = false;
  for (;;) {
    try {
      return std::make_shared<TcpStore>(
          TcpStoreOptions{.endpoint = endpoint,
                          .secret = secret,
                          .job = options.job,
                          .timeout = std::max(std::min(answer, deadline.left()), kLeast),
                          .reconnect = is_served_here ? answer : silence.step()});
    } catch (const Error& error) {
      if (!is_one_of(error.code(), ErrorCode::unavailable, ErrorCode::timeout))
        throw;
      if (deadline.passed()) {
        throw unavailable("rendezvous: expected the host that serves it at ",
                          options.endpoint,
                          holder_text(port_here),
                          " within ",
                          format_duration(options.join_timeout),
                          ", got: ",
                          without_advice(error),
                          "; start the host that serves it, or correct --rdzv-endpoint");
      }
      if (!std::exchange(said, true))
        log_info("waiting for the host that serves the rendezvous at ",
                 options.endpoint,
                 holder_text(port_here),
                 ": ",
                 without_advice(error));
      sleep_within(deadline, milliseconds(200));
    }
  }
}

// Calls `attempt` until it no longer throws unavailable, or the deadline has passed. What `words`
// makes of the first such error is said once.
template <class Attempt, class Words>
auto retry_while_unavailable(const Deadline& deadline, const Attempt& attempt, const Words& words) {
  for (bool said = false;; said = true) {
    try {
      return attempt();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable || deadline.passed())
        throw;
      if (!said)
        log_info(words(error.message()));
    }
    sleep_within(deadline, milliseconds(500));
  }
}

// A name may be about to be made known, as that of a pod that is starting.
std::string patient_address_to_serve(const std::string& host, const ClusterOptions& options) {
  const auto words = [](const std::string& error) {
    return cat(error, "; trying again for a while");
  };
  return retry_while_unavailable(
      Deadline(std::min<milliseconds>(options.join_timeout, kNameMayCome)),
      [&] { return address_to_serve(host); },
      words);
}

// As connect(), at the store that the file names.
FoundRendezvous connect_by_file(const ClusterOptions& options) {
  return connect_by_rendezvous_file(options.rendezvous_file,
                                    {.job = options.job,
                                     .timeout = options.silence.answer(),
                                     .reconnect = options.silence.step()},
                                    options.join_timeout);
}

// Node rank 0 serves on a free port and writes into the file where; the others wait for the file.
HostRendezvous meet_at_file(const ClusterOptions& options) {
  HostRendezvous rendezvous;
  std::string here = options.local_address;
  if (here.empty())
    here = options.one_machine ? "127.0.0.1" : outward_address();
  if (options.node_rank != 0) {
    FoundRendezvous found = connect_by_file(options);
    rendezvous.secret = found.point.secret;
    rendezvous.store = std::move(found.store);
    rendezvous.address = options.local_address;
    if (rendezvous.address.empty())
      rendezvous.address = address_towards(parse_endpoint(found.point.endpoint).host);
    return rendezvous;
  }
  check_local_address(options.local_address);
  rendezvous.secret = Secret::make();
  rendezvous.server = serve(options, {.host = here}, rendezvous.secret);
  const Endpoint endpoint = rendezvous.server->endpoint();
  rendezvous.file = std::make_unique<RendezvousFile>(
      options.rendezvous_file,
      RendezvousPoint{.endpoint = to_string(endpoint), .secret = rendezvous.secret});
  rendezvous.store = connect(options, endpoint, rendezvous.secret, true);
  rendezvous.address = here;
  return rendezvous;
}

// This host's address on the route to the first of these servers that there is a route to.
std::string address_towards_any(const Strings& endpoints) {
  for (size_t i = 0;; ++i) {
    try {
      return address_towards(parse_endpoint("tcp://" + endpoints.at(i)).host);
    } catch (const Error& error) {
      if (i + 1 == endpoints.size())
        throw;
      log_warning("etcd at ", endpoints[i], ": ", error.message(), "; asking the next");
    }
  }
}

// Connects as soon as a server answers. Throws: unavailable when none does in time.
SharedStore etcd_store(const EtcdStoreOptions& etcd, const ClusterOptions& options) {
  try {
    return retry_while_unavailable(
        Deadline(options.join_timeout),
        [&] { return std::make_shared<EtcdStore>(etcd); },
        [](const std::string& error) { return cat("waiting for etcd: ", error); });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable)
      throw;
    throw unavailable("rendezvous: expected etcd at ",
                      options.endpoint,
                      " within ",
                      format_duration(options.join_timeout),
                      ", got: ",
                      error.message(),
                      "; see whether it runs and can be reached from here, or correct "
                      "--rdzv-endpoint");
  }
}

// No host serves. The server of etcd may be started at the same time as the job.
HostRendezvous meet_in_etcd(const ClusterOptions& options) {
  const Strings endpoints = split(options.endpoint, ',');
  const auto urls = mapped(
      endpoints, [&](const auto& endpoint) { return cat(options.etcd_protocol, "://", endpoint); });
  HostRendezvous rendezvous;
  rendezvous.address =
      options.local_address.empty() ? address_towards_any(endpoints) : options.local_address;
  rendezvous.secret = cluster_secret(options, is_loopback_address(rendezvous.address));
  const EtcdStoreOptions etcd{.http = {.urls = urls,
                                       .ca_file = options.etcd_ca_file,
                                       .cert_file = options.etcd_cert_file,
                                       .key_file = options.etcd_key_file,
                                       .connect_timeout = options.silence.step(),
                                       .timeout = options.silence.answer()},
                              .job = options.job,
                              .patience = options.silence.limit()};
  rendezvous.store = etcd_store(etcd, options);
  return rendezvous;
}

// Throws: invalid_argument where this host is to serve and `here`, its address, is none of its own.
void check_is_served_here(const ClusterOptions& options, const std::string& here) {
  if (!here.empty())
    return;
  throw invalid_argument(
      "rendezvous: expected an address of this host, which has node rank 0 and serves "
      "it, got ",
      options.endpoint,
      "; give this host's address, or the right --node-rank");
}

// Another agent of the job on this machine may have come first: then this one serves nothing.
std::unique_ptr<TcpServer> serve_unless_served(const ClusterOptions& options,
                                               const Endpoint& at,
                                               const Secret& secret) {
  try {
    return server_at(options, at, secret);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable || at.port == 0)
      throw;
    return nullptr;
  }
}

// With node ranks the host of rank 0 serves; else any host whose address the endpoint is.
HostRendezvous meet_at_endpoint(const ClusterOptions& options) {
  HostRendezvous rendezvous;
  Endpoint endpoint = endpoint_of(options);
  const auto here = patient_address_to_serve(endpoint.host, options);
  const bool by_rank = options.backend == "static" && options.node_rank.has_value();
  const bool is_the_one = by_rank ? *options.node_rank == 0 : !here.empty();
  const bool may_serve = is_the_one && !options.remote;
  const bool is_loopback_only = is_loopback_address(endpoint.host) || is_loopback_address(here);
  rendezvous.secret = cluster_secret(options, is_loopback_only);
  if (may_serve) {
    check_is_served_here(options, here);
    check_local_address(options.local_address);
    endpoint.host = text_or(options.local_address, here);
    rendezvous.server = by_rank ? serve(options, endpoint, rendezvous.secret)
                                : serve_unless_served(options, endpoint, rendezvous.secret);
    if (rendezvous.server)
      endpoint = rendezvous.server->endpoint();
  }
  const bool is_served = rendezvous.server != nullptr;
  const int port_here = may_serve && !is_served ? endpoint.port : 0;
  rendezvous.store = connect(options, endpoint, rendezvous.secret, is_served, port_here);
  if (port_here != 0)
    rendezvous.holder = text_or(port_holder(port_here), "another process");
  rendezvous.address = options.local_address;
  if (rendezvous.address.empty())
    rendezvous.address = may_serve ? endpoint.host : address_towards(endpoint.host);
  return rendezvous;
}

}  // namespace

// Secrets are looked for in this order: the options', a file's, the environment's, this user's.
Secret cluster_secret(const ClusterOptions& options, bool loopback) {
  if (!options.secret.empty())
    return options.secret;
  std::optional<Secret> given;
  if (!options.secret_file.empty()) {
    given = read_named("--secret-file", [&] { return Secret::from_file(options.secret_file); });
  } else {
    given = Secret::from_environment();
    // It is the agents': a rank that had it could give orders.
    if (const auto fd = get_env_count("MUSTER_SECRET_FD"))
      ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  }
  if (given && options.no_auth) {
    throw invalid_argument(
        "--no-auth: expected no secret beside it, got one; leave one of them out");
  }
  if (given)
    return *given;
  if (options.no_auth)
    return {};
  if (loopback)
    return user_secret();
  throw failed_precondition(
      "rendezvous at ",
      options.endpoint,
      ": expected the job's secret, got none; make one with `(umask 077; muster secret "
      "> FILE)`, copy "
      "it to every host and give it with --secret-file FILE, or say --no-auth where "
      "nobody else can "
      "reach these hosts");
}

// A host may have many addresses; one that is here will do.
bool is_this_machine(const std::string& host) {
  const std::vector<SocketAddress> addresses = resolve({.host = host}, Deadline(kResolve));
  return any_of(addresses, is_here);
}

// A name that does not resolve is none either.
void check_local_address(const std::string& local_address) {
  try {
    if (local_address.empty() || is_this_machine(local_address))
      return;
  } catch (const Error& error) {
    log_debug(error.message());
  }
  throw bad_flag("--local-addr",
                 "an address or a name of this host, which has to listen there",
                 local_address,
                 "`ip address` lists the addresses");
}

// The first address of the host that is this machine's counts.
std::string address_to_serve(const std::string& host) {
  for (const SocketAddress& address : resolve({.host = host}, Deadline(kResolve))) {
    if (!is_here(address))
      continue;
    std::string text = host_of(address);
    if (!is_loopback(address) || is_loopback_address(host))
      return text;
    std::string outward = outward_address();
    if (outward.empty())
      return text;
    log_warning("host name ",
                host,
                " means ",
                text,
                " here, which no other host can reach (see "
                "/etc/hosts); using ",
                outward,
                " instead; --local-addr chooses another");
    return outward;
  }
  return "";
}

HostRendezvous open_host_rendezvous(const ClusterOptions& options) {
  if (!options.rendezvous_file.empty())
    return meet_at_file(options);
  if (options.backend == "etcd")
    return meet_in_etcd(options);
  return meet_at_endpoint(options);
}

// A store that a host serves ends with its server.
void clean_up(Store& store) {
  auto* const etcd = dynamic_cast<EtcdStore*>(&store);
  if (etcd == nullptr)
    return;
  try {
    etcd->remove_all();
  } catch (const std::exception& error) {
    log_debug(error.what());
  }
}

}  // namespace muster
