// How the hosts of a job find each other, as the command line and the cluster's own variables say
// it.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/cluster/silence.h"
#include "muster/store/secret.h"

namespace muster {

// Why no process of a job of several hosts stops by SIGTSTP, as that of one host does with its
// ranks.
inline constexpr auto kGoesOnBecause =
    "the other hosts would hear nothing of this one, give it up and end their ranks; the job goes "
    "on, Ctrl-C "
    "ends it";

struct ClusterOptions {
  int min_hosts = 1;
  int max_hosts = 1;
  std::optional<int> node_rank{};
  std::string backend = "static";  // static, c10d: a store that one of the hosts serves; etcd
  std::string endpoint{};          // host:port of that store; etcd: several, with commas
  std::string job{};               // etcd: the job's name there
  std::string etcd_protocol = "http";
  std::string etcd_ca_file{};
  std::string etcd_cert_file{};
  std::string etcd_key_file{};
  // The file in which to leave or find that, when nobody was told (srun, mpirun).
  std::string rendezvous_file{};
  bool one_machine = false;  // all of them are on this one
  // The address by which other hosts reach this one; empty: found by the route to the endpoint.
  std::string local_address{};
  std::string host_name{};    // what this host is called; empty: by its own name
  Secret secret{};            // given by whoever started this agent; empty: look for one
  std::string secret_file{};  // empty: MUSTER_SECRET_FD, MUSTER_SECRET_FILE
  bool no_auth = false;
  bool remote = false;  // started by a `muster run` elsewhere, which says what is to be said
  milliseconds join_timeout{600'000};         // for min_hosts to come
  milliseconds last_call{30'000};             // with min_hosts there, for more
  Silence silence{std::chrono::seconds(15)};  // of a host that cannot be heard
  int max_host_failures = 3;

  bool elastic() const { return min_hosts < max_hosts; }
};

}  // namespace muster
