// What a job on one host needs before its ranks start: a folder, a held port, a served store and its secret.
// Made by the agent and kept until the job has ended.
#pragma once

#include <memory>

#include "muster/launch/lease.h"
#include "muster/launch/port.h"
#include "muster/launch/worker_spec.h"
#include "muster/store/secret.h"
#include "muster/store/tcp_server.h"

namespace muster {

// A random UUID, version 4.
std::string make_uuid();

class JobSetup {
 public:
  // Makes the run's folder and writes plan.json in it; reserves the port; serves the store on loopback.
  // Throws: SpawnError (no such program), io, unavailable (port taken), invalid_argument (master address).
  JobSetup(const LaunchOptions& options, const Plan& plan, int cores, std::vector<Lease> leases = {});

  const JobFacts& facts() const { return facts_; }

  // Descriptors that every rank inherits.
  std::vector<int> inherited_fds() const;

  // Removes the folders of logs that hold nothing.
  void remove_empty_folders() const;

 private:
  JobFacts facts_;
  PortReservation port_;
  Fd secret_fd_;
  std::vector<Lease> leases_;  // held as long as the job is
  std::unique_ptr<TcpServer> store_;
};

}  // namespace muster
