// How it works: the process with rank 0 serves a store and writes its address and a fresh secret
// into a private file, which the others wait for. The file's name is made of what the launcher's
// environment says of the job, so that all of its processes find the same, and no other job's do.
#include "muster/store/rendezvous_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/pauses.h"
#include "muster/base/rank_env.h"
#include "muster/base/runtime_folder.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/store/bytes.h"

namespace muster {

namespace {

constexpr milliseconds kLookEvery{20};
constexpr milliseconds kConnectAgainAfter{200};
constexpr std::chrono::seconds kMostToConnect{5};  // of one try, on a network that loses packets
constexpr size_t kMostBytes = 4096;

// Files of different launchers and jobs must not have the same name.
std::string file_name(const std::string& launcher, const std::string& job, const std::string& who) {
  return cat(".muster-", launcher, "-", job, "-", who);
}

// Processes of one host meet in the user's runtime folder.
std::string in_runtime_folder(const std::string& name) {
  const auto folder = default_runtime_folder();
  open_runtime_folder(folder, true);
  return cat(folder, "/", name);
}

// Processes of several hosts meet in the folder in which the job was started: the one in the
// variable, or else the current one.
std::string in_folder_of_job(const char* variable, const std::string& name) {
  if (const auto told = get_env(variable))
    return cat(*told, "/", name);
  char here[4096];
  if (::getcwd(here, sizeof(here)) == nullptr)
    fail_errno("cannot find the current folder", errno);
  return cat(here, "/", name);
}

RendezvousPlace place_for(bool is_one_host, const char* variable, const std::string& file) {
  return {is_one_host ? in_runtime_folder(file) : in_folder_of_job(variable, file), is_one_host};
}

std::optional<RendezvousPlace> place_of_mpirun(const std::string& who) {
  const auto name = get_env("PMIX_NAMESPACE");
  const auto size = get_env("OMPI_COMM_WORLD_SIZE");
  if (!name || !size)
    return std::nullopt;
  const bool is_one_host = size == get_env("OMPI_COMM_WORLD_LOCAL_SIZE");
  return place_for(is_one_host, "OMPI_MCA_initial_wdir", file_name("mpirun", *name, who));
}

// MPICH's launcher says nothing by which processes of several hosts could meet.
std::optional<RendezvousPlace> place_of_mpiexec(const std::string& who) {
  const auto size = get_env("PMI_SIZE");
  if (!size || size != get_env("MPI_LOCALNRANKS"))
    return std::nullopt;
  return RendezvousPlace{in_runtime_folder(file_name("mpiexec", cat(::getppid()), who)), true};
}

std::optional<RendezvousPlace> place_of_srun(const std::string& who) {
  const auto job = get_env("SLURM_JOB_ID");
  if (!inside_srun_step() || !job)
    return std::nullopt;
  const std::string restarts = get_env("SLURM_RESTART_COUNT").value_or("0");
  const auto step = cat(*job, ".", *get_env("SLURM_STEP_ID"), ".", restarts);
  const bool is_one_host = get_env("SLURM_STEP_NUM_NODES") == "1";
  return place_for(is_one_host, "SLURM_SUBMIT_DIR", file_name("srun", step, who));
}

// The serving process keeps these until its store is no longer used.
struct Served {
  Served(const std::string& path,
         const std::string& address,
         const Secret& secret,
         milliseconds timeout)
      : server({.endpoint = {.host = address}, .secret = secret}),
        client({.endpoint = server.endpoint(), .secret = secret, .timeout = timeout}),
        file(path, {.endpoint = to_string(server.endpoint()), .secret = secret}) {}

  TcpServer server;
  TcpStore client;
  RendezvousFile file;
};

}  // namespace

// The file is written aside and renamed, so that nobody reads a part of it.
RendezvousFile::RendezvousFile(std::string path, const RendezvousPoint& point)
    : path_(std::move(path)) {
  const auto aside = name_aside(path_);
  file_ = Fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_.valid())
    fail_errno(
        errno, "cannot create '", path_, "', by which the hosts of this job find each other");
  try {
    point.secret.write_to(file_.get(), cat("\n", point.endpoint, "\n"), path_);
  } catch (const Error&) {
    ::unlink(aside.c_str());
    throw;
  }
  rename_aside(aside, path_);
}

// The secret goes with the store. The next job of this name may have its file there by then.
RendezvousFile::~RendezvousFile() {
  if (is_at(file_, path_))
    ::unlink(path_.c_str());
}

// Whoever else may read the file is refused, as it holds the secret.
RendezvousPoint wait_for_rendezvous_file(const std::string& path, milliseconds timeout) {
  const Deadline deadline(timeout);
  while (::access(path.c_str(), R_OK) != 0) {
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  "rendezvous: expected the file '",
                  path,
                  "' of the process with rank 0 within ",
                  format_duration(timeout),
                  ", got none; start the job in a folder that its hosts share, or set "
                  "MASTER_ADDR and MASTER_PORT (muster run: --rdzv-endpoint)");
    sleep_within(deadline, kLookEvery);
  }
  WipedBytes<kMostBytes> bytes;
  const ssize_t size = ::read(open_private_file(path).get(), bytes.data, kMostBytes);
  const std::string_view text(bytes.data, std::max<ssize_t>(0, size));
  const size_t line = text.find('\n');
  if (line == npos)
    throw invalid_argument("rendezvous: expected a secret and an address in '",
                           path,
                           "', got one line; see whether another program wrote it");
  const std::string_view rest = text.substr(line + 1);
  return {.endpoint = std::string(rest.substr(0, rest.find('\n'))),
          .secret = Secret::from_hex(text.substr(0, line))};
}

// The file is read anew for each try. A server that has its file there listens already, so whoever
// does not is gone. Another program may have its port by now, and never answer, so a try has less
// time than what is asked of the store later.
FoundRendezvous connect_by_rendezvous_file(const std::string& path,
                                           TcpStoreOptions options,
                                           milliseconds timeout) {
  const Deadline deadline(timeout);
  for (bool is_said = false;; is_said = true) {
    const RendezvousPoint point = wait_for_rendezvous_file(path, deadline.left());
    options.endpoint = parse_endpoint(point.endpoint);
    options.secret = point.secret;
    options.is_served = true;
    try {
      TcpStoreOptions first_try = options;
      first_try.timeout = std::min<milliseconds>(options.timeout, kMostToConnect);
      const TcpStore is_there(first_try);
      return {.point = point, .store = std::make_shared<TcpStore>(options)};
    } catch (const Error& error) {
      const bool is_of_this_job = error.code() == ErrorCode::failed_precondition;
      if (is_of_this_job)
        throw;
      if (deadline.passed())
        throw Error(ErrorCode::timeout,
                    "rendezvous: expected the process with rank 0 to serve where the file '",
                    path,
                    "' says within ",
                    format_duration(timeout),
                    ", got: ",
                    error.message());
      if (!is_said)
        log_info("nobody of this job serves at ",
                 point.endpoint,
                 ", which '",
                 path,
                 "' names; waiting for the file of its process with rank 0");
    }
    sleep_within(deadline, kConnectAgainAfter);
  }
}

std::optional<RendezvousPlace> rendezvous_place_of_environment(const std::string& who) {
  if (const auto place = place_of_mpirun(who))
    return place;
  if (const auto place = place_of_mpiexec(who))
    return place;
  return place_of_srun(who);
}

// The store of the serving process keeps the server and the file alive.
RendezvousStore rendezvous_by_file(const std::string& path,
                                   bool serve,
                                   const std::string& address,
                                   milliseconds timeout) {
  if (!serve) {
    const FoundRendezvous found = connect_by_rendezvous_file(path, {.timeout = timeout}, timeout);
    return {found.store, parse_endpoint(found.point.endpoint).host};
  }
  const auto served = std::make_shared<Served>(path, address, Secret::make(), timeout);
  return {SharedStore(served, &served->client), served->server.endpoint().host};
}

}  // namespace muster
