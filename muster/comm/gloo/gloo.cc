// LibTorch's Gloo chooses the address that the host's name resolves to, which is loopback on many
// machines. So the interface is chosen here, by its name or by the route to rank 0.
#include "muster/comm/gloo/gloo.h"

#include <cstdint>
#include <exception>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/env.h"
#include "muster/base/no_sigpipe.h"
#include "muster/base/route.h"
#include "muster/base/tensors.h"

namespace muster {

namespace {

// GLOO_SOCKET_IFNAME may name several interfaces, all of which Gloo then uses.
void choose_interface(c10d::ProcessGroupGloo::Options& options, const std::string& master_addr) {
  using GlooGroup = c10d::ProcessGroupGloo;
  const auto names = get_env("GLOO_SOCKET_IFNAME");
  try {
    if (!names) {
      const auto address = address_towards(master_addr);
      options.devices.push_back(GlooGroup::createDeviceForHostname(address));
      return;
    }
    for (const auto& name : split(*names, ','))
      options.devices.push_back(GlooGroup::createDeviceForInterface(name));
  } catch (const std::exception& error) {
    throw invalid_argument(
        "gloo: expected a usable network interface, got ",
        names ? cat("GLOO_SOCKET_IFNAME=", *names) : cat("the route to '", master_addr, "'"),
        " (",
        std::string(error.what()).substr(0, 200),
        "); set GLOO_SOCKET_IFNAME to one of `ip link`");
  }
}

// A rank that ends as soon as it is connected closes its sockets, and a rank that is still about to
// connect would take that for a failure.
void wait_until_all_are_connected(c10d::Store& store, int size, milliseconds timeout) {
  const std::string all = "all_connected";
  if (store.add("connected", 1) == size)
    store.set(all, std::vector<uint8_t>{1});
  store.wait({all}, timeout);
}

// Gloo writes to a socket whose peer may be dead, and the rank must outlive that. Gloo's own
// threads are protected since they were made; these calls write in the caller's thread.
class Gloo : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const NoSigpipe guard;
    return ProcessGroupGloo::send(tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    const NoSigpipe guard;
    return ProcessGroupGloo::recv(tensors, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    const NoSigpipe guard;
    return ProcessGroupGloo::recvAnysource(tensors, tag);
  }
  void monitoredBarrier(const BarrierOptions& options, bool wait_all_ranks) override {
    const NoSigpipe guard;
    ProcessGroupGloo::monitoredBarrier(options, wait_all_ranks);
  }
};

}  // namespace

BackendPtr make_gloo(const StorePtr& store,
                     int rank,
                     int size,
                     milliseconds timeout,
                     const std::string& master_addr) {
  const NoSigpipe guard;  // also in the threads that Gloo makes here
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  choose_interface(*options, master_addr);
  auto gloo = c10::make_intrusive<Gloo>(store, rank, size, options);
  wait_until_all_are_connected(*store, size, timeout);
  return gloo;
}

}  // namespace muster
