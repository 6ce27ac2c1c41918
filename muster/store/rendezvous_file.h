// How processes that a cluster's own launcher started (srun, mpirun) find each other without being
// told where: the first of them serves a store and writes its address and a fresh secret into a
// private file that the others can see, too; they wait for it.
#pragma once

#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/store/secret.h"
#include "muster/store/store.h"
#include "muster/store/tcp_server.h"
#include "muster/store/tcp_store.h"

namespace muster {

struct RendezvousPoint {
  std::string endpoint{};  // "tcp://host:port"
  Secret secret{};
};

// The file, as long as this lives, unless another process has replaced it.
class RendezvousFile : NoCopy {
 public:
  // Only this user can read it. One that is left over is replaced. Throws: io.
  RendezvousFile(std::string path, const RendezvousPoint& point);
  ~RendezvousFile();

 private:
  std::string path_;
  Fd file_;
};

// Blocking: until the file is there. Throws: timeout naming the file and what it is for; as
// Secret::from_file.
RendezvousPoint wait_for_rendezvous_file(const std::string& path, milliseconds timeout);

// A connection to the store that the file names. A job that was killed may have left a file of the
// same name: while nobody serves there who knows its secret, the file of this job's own process is
// waited for. `options`: all but endpoint and secret. Blocking: until connected, or `timeout`.
// Throws: as wait_for_rendezvous_file and TcpStore; timeout naming the file.
struct FoundRendezvous {
  RendezvousPoint point{};
  SharedStore store{};
};
FoundRendezvous connect_by_rendezvous_file(const std::string& path,
                                           TcpStoreOptions options,
                                           milliseconds timeout);

// Where the processes of this srun step or mpirun can leave such a file for each other; `who` tells
// several kinds apart ("agents", "ranks"). On one host that is the user's runtime folder; on
// several the folder that the job was started in, which they must share. Nothing when the
// environment tells of no such launcher, or of none whose processes have a name in common.
struct RendezvousPlace {
  std::string path{};
  bool one_host = false;  // all of them are here
};
std::optional<RendezvousPlace> rendezvous_place_of_environment(const std::string& who);

// A store at which the processes that share `path` meet; the one that serves keeps the server as
// long as it keeps the store. `address`: where to serve. Blocking: until there, or `timeout`.
// Throws: as RendezvousFile, wait_for_rendezvous_file, TcpStore.
struct RendezvousStore {
  SharedStore store{};
  std::string host{};  // where it is served
};
RendezvousStore rendezvous_by_file(const std::string& path,
                                   bool serve,
                                   const std::string& address,
                                   milliseconds timeout);

}  // namespace muster
