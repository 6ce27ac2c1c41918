// The store at which the hosts of a job meet: served by one of them, reached by the others. Decides
// who serves, on which address, and under which secret.
#pragma once

#include <memory>
#include <string>

#include "muster/cluster/cluster_options.h"
#include "muster/store/rendezvous_file.h"
#include "muster/store/secret.h"
#include "muster/store/store.h"
#include "muster/store/tcp_server.h"

namespace muster {

// The secret that the job's hosts share: from the file or the environment; on one machine alone
// (loopback) one that this user's processes find in the runtime folder. Empty with no_auth. Throws:
// failed_precondition with advice when there is none; as Secret::from_file.
Secret cluster_secret(const ClusterOptions& options, bool loopback);

// The address at which a server for `host` is to listen: one of this machine; empty when `host` is
// another's. A name that means loopback here only (Debian's 127.0.1.1) is replaced by the address
// that leads out, and that is said. Throws: unavailable when the name does not resolve.
std::string address_to_serve(const std::string& host);

// Whether the name is this machine's. Throws: unavailable when it does not resolve.
bool is_this_machine(const std::string& host);

// For a host that is to listen at --local-addr. Throws: invalid_argument, which names the flag, for
// an address that is none of this machine's; nothing where the flag was not given.
void check_local_address(const std::string& local_address);

struct HostRendezvous {
  std::unique_ptr<TcpServer> server{};     // when this host serves
  std::unique_ptr<RendezvousFile> file{};  // and leaves word where
  SharedStore store{};                     // this host's connection
  std::string address{};                   // where other hosts reach this one
  Secret secret{};
  std::string holder{};  // who serves where this host would have: "process 4711 (muster)"
};

// Serves the store when this host is the one to (static: node rank 0; c10d: the endpoint is an
// address of this machine and nobody listens there yet), else connects. Blocking: until connected,
// or join_timeout. Throws: unavailable (no server, port taken, name does not resolve); as
// cluster_secret.
HostRendezvous open_host_rendezvous(const ClusterOptions& options);

// Removes what the job has left in its store, at its end: what is left in etcd otherwise goes with
// its lease.
void clean_up(Store& store);

}  // namespace muster
