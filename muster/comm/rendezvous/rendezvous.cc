// Rank and world size come from the arguments or from the environment, and the store from the init
// method: a launcher's store, PyTorch's TCPStore, a file of a scheduler's job, or a file.
#include "muster/comm/rendezvous/rendezvous.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <netdb.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/env_count.h"
#include "muster/base/rank_env.h"
#include "muster/base/route.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/rendezvous/store_adapter.h"
#include "muster/store/endpoint.h"
#include "muster/store/file_store.h"
#include "muster/store/open_store.h"
#include "muster/store/rendezvous_file.h"

namespace muster {

namespace {

// The two numbers come together, from one place at least.
void check_rank_options(const InitOptions& options, const std::optional<RankEnv>& env) {
  if (options.rank.has_value() != options.world_size.has_value()) {
    throw invalid_argument("init_process_group: expected rank and world_size together, got only ",
                           options.rank ? "rank" : "world_size");
  }
  if (!options.rank && !env) {
    throw invalid_argument(
        "init_process_group: expected rank and world size from arguments or from the "
        "environment (RANK and WORLD_SIZE), got neither; start the program with `muster "
        "run` or torchrun, or use muster::run");
  }
}

// The numbers may come from the environment, and so be anything.
void check_rank_range(const Rendezvous& rendezvous) {
  const int rank = rendezvous.rank;
  if (rank >= 0 && rank < rendezvous.world_size)
    return;
  throw invalid_argument("init_process_group: expected 0 <= rank < world_size, got rank ",
                         rank,
                         " of ",
                         rendezvous.world_size);
}

// Arguments and environment may both say the rank, and must say the same then.
void settle_rank(const InitOptions& options,
                 const std::optional<RankEnv>& env,
                 Rendezvous& rendezvous) {
  check_rank_options(options, env);
  rendezvous.rank = options.rank.value_or(env ? env->rank : 0);
  rendezvous.world_size = options.world_size.value_or(env ? env->world_size : 1);
  const bool agree =
      !env || (env->rank == rendezvous.rank && env->world_size == rendezvous.world_size);
  if (!agree) {
    throw invalid_argument(
        "init_process_group: expected arguments and environment to agree, got rank ",
        rendezvous.rank,
        " of ",
        rendezvous.world_size,
        " as arguments and rank ",
        env->rank,
        " of ",
        env->world_size,
        " from ",
        env->source,
        "; give one of them");
  }
  check_rank_range(rendezvous);
}

// Opens PyTorch's own store, which is not authenticated, for ranks that were not started by muster.
// A name that does not resolve is a clear error in moments: the store would retry for minutes.
StorePtr open_tcp(const std::string& host, int port, bool serve, milliseconds timeout) {
  address_towards(host);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  StorePtr store;
  const std::string what = serve ? cat("rendezvous: expected rank 0 to listen on port ",
                                       port,
                                       " (see whether another process uses it)")
                                 : cat("rendezvous: expected rank 0's store at ", host, ":", port);
  translate_failures(what, [&] { store = c10::make_intrusive<c10d::TCPStore>(host, options); });
  return store;
}

// An attempt must not read the keys of the one before it, which live on in the launcher's store.
StorePtr of_attempt(const StorePtr& store, const std::optional<RankEnv>& env) {
  return store_part(store, cat("muster/", env ? env->attempt : 0));
}

// The ranks of a scheduler's job meet by a file.
StorePtr meet_by_file(const RendezvousPlace& place,
                      const InitOptions& options,
                      Rendezvous& rendezvous) {
  rendezvous.serves_store = rendezvous.rank == 0;
  const std::string here = place.one_host ? "127.0.0.1" : outward_address();
  RendezvousStore met =
      rendezvous_by_file(place.path, rendezvous.serves_store, here, options.init_timeout);
  rendezvous.master_addr = met.host;
  return adapt_store(std::move(met.store), options.init_timeout);
}

// Opens the store at MASTER_ADDR and MASTER_PORT.
StorePtr open_master(const InitOptions& options,
                     const std::optional<RankEnv>& env,
                     Rendezvous& rendezvous) {
  const std::string& host = rendezvous.master_addr;
  const int port = env ? env->master_port : get_env_count("MASTER_PORT").value_or(0);
  if (host.empty() || port < 1 || port > 65535) {
    throw invalid_argument("env://: expected MASTER_ADDR and MASTER_PORT, got MASTER_ADDR='",
                           host,
                           "' and MASTER_PORT=",
                           port,
                           "; set them to the host of rank 0 and a free port there");
  }
  rendezvous.serves_store = rendezvous.rank == 0 && !(env && env->use_agent_store);
  return open_tcp(host, port, rendezvous.serves_store, options.init_timeout);
}

// The launcher's own store comes first, then a scheduler's job, and last the master.
StorePtr open_env(const InitOptions& options,
                  const std::optional<RankEnv>& env,
                  Rendezvous& rendezvous) {
  rendezvous.master_addr = env ? env->master_addr : get_env("MASTER_ADDR").value_or("");
  if (env && !env->store.empty())
    return adapt_store(open_job_store(env->store, options.init_timeout), options.init_timeout);
  if (env && env->master_addr.empty()) {
    if (const auto place = rendezvous_place_of_environment("ranks"))
      return meet_by_file(*place, options, rendezvous);
  }
  return open_master(options, env, rendezvous);
}

// Opens the store of the init method, and says in `rendezvous` who serves it.
StorePtr open_store_for(const InitOptions& options,
                        const std::optional<RankEnv>& env,
                        Rendezvous& rendezvous) {
  const std::string& method = options.init_method;
  if (method == "env://")
    return of_attempt(open_env(options, env, rendezvous), env);
  if (method.starts_with("tcp://")) {
    const Endpoint endpoint = parse_endpoint(method);
    rendezvous.master_addr = endpoint.host;
    rendezvous.serves_store = rendezvous.rank == 0;
    return open_tcp(endpoint.host, endpoint.port, rendezvous.serves_store, options.init_timeout);
  }
  constexpr std::string_view kFile = "file://";
  if (method.starts_with(kFile)) {
    auto store = std::make_shared<FileStore>(FileStoreOptions{.path = method.substr(kFile.size()),
                                                              .job = env ? env->run_id : "",
                                                              .rank = rendezvous.rank,
                                                              .world_size = rendezvous.world_size});
    return adapt_store(std::move(store), options.init_timeout);
  }
  throw invalid_argument(
      "init_method: expected env://, tcp://host:port or file:///path, got '", method, "'");
}

}  // namespace

// A rank 0 that serves the store does so from here on.
Rendezvous open_rendezvous(const InitOptions& options) {
  const auto env = rank_env_from_environment();
  Rendezvous rendezvous;
  settle_rank(options, env, rendezvous);
  rendezvous.store = open_store_for(options, env, rendezvous);
  return rendezvous;
}

}  // namespace muster
