// The library for this process's launcher is found beside libmuster and loaded with dlopen(), so
// that a program needs no MPI until it asks for one.
#include "muster/comm/mpi/loader.h"

#include <dlfcn.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/comm/call/library_folder.h"
#include "muster/comm/call/plugin_table.h"
#include "muster/comm/host/backend.h"
#include "muster/comm/host/store_exchange.h"
#include "muster/comm/mpi/plugin.h"

namespace muster {

namespace {

// The libraries to look for, best first, by what the launcher has set. An MPI under another one's
// launcher would start a world of its own in every process.
Strings libraries_for_launcher() {
  if (get_env("OMPI_COMM_WORLD_SIZE"))
    return {"muster_mpi_ompi", "muster_mpi"};
  if (get_env("PMIX_RANK"))
    return {"muster_mpi_ompi", "muster_mpi_mpich", "muster_mpi"};
  if (get_env("PMI_RANK") || get_env("PMI_ID"))
    return {"muster_mpi_mpich", "muster_mpi"};
  throw failed_precondition(
      "mpi: expected a process that an MPI launcher has started (OMPI_COMM_WORLD_SIZE, PMIX_RANK "
      "or PMI_RANK), got none; start it as `mpirun -n 4 PROGRAM`, or take another backend");
}

// The library lies beside libmuster itself, wherever that was installed.
std::string find_library() {
  const auto names = libraries_for_launcher();
  if (const auto path = get_env("MUSTER_MPI_LIBRARY"))
    return *path;
  const auto folder = folder_of_library_with(&make_mpi);
  for (const auto& name : names) {
    auto path = cat(folder, "lib", name, ".so");
    if (::access(path.c_str(), F_OK) == 0)
      return path;
  }
  throw unavailable(
      "mpi: expected the library ",
      join(names, " or "),
      " in ",
      folder,
      ", got none; install the MPI of this launcher with its headers (libopenmpi-dev or "
      "libmpich-dev) and build muster with -DMUSTER_MPI=ON");
}

const MpiPlugin& load_mpi_plugin() {
  const auto path = find_library();
  // RTLD_GLOBAL because an MPI's own plugins look for it. It stays loaded, because a process can
  // initialise MPI once.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw unavailable("mpi: expected a usable library, got: ",
                      ::dlerror(),
                      "; check that this host has the MPI that muster was built with");
  }
  return plugin_table<MpiPlugin>(library, path, "mpi", kMpiPluginSymbol);
}

}  // namespace

BackendPtr make_mpi(
    const StorePtr& store, int rank, int size, bool of_all_ranks, milliseconds timeout) {
  auto carrier = load_mpi_plugin().connect({.exchange = exchange_over(store, rank, timeout),
                                            .rank = rank,
                                            .size = size,
                                            .of_all_ranks = of_all_ranks,
                                            .timeout = timeout});
  return make_host_backend("mpi", rank, size, timeout, std::move(carrier));
}

}  // namespace muster
