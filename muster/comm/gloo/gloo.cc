#include "muster/comm/gloo/gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "muster/base/env.h"
#include "muster/base/no_sigpipe.h"
#include "muster/base/route.h"

namespace muster {

namespace {

void choose_interface(c10d::ProcessGroupGloo::Options& options, const std::string& master_addr) {
  try {
    if (const auto names = get_env("GLOO_SOCKET_IFNAME")) {
      for (const std::string& name : split(*names, ',')) {
        options.devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
      }
    } else {
      options.devices.push_back(
          c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(master_addr)));
    }
  } catch (const std::exception& error) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("gloo: expected a usable network interface, got ",
            get_env("GLOO_SOCKET_IFNAME") ? "GLOO_SOCKET_IFNAME=" + *get_env("GLOO_SOCKET_IFNAME")
                                          : "the route to '" + master_addr + "'",
            " (",
            std::string(error.what()).substr(0, 200),
            "); set GLOO_SOCKET_IFNAME to one of `ip link`"));
  }
}

// Gloo writes to a socket whose peer may be dead, and the rank must outlive it. Its own threads are
// protected since they were made; these calls write in the caller's.
class Gloo : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const NoSigpipe guard;
    return ProcessGroupGloo::send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from,
                                      int tag) override {
    const NoSigpipe guard;
    return ProcessGroupGloo::recv(tensors, from, tag);
  }
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override {
    const NoSigpipe guard;
    return ProcessGroupGloo::recvAnysource(tensors, tag);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const NoSigpipe guard;
    ProcessGroupGloo::monitoredBarrier(options, wait_all_ranks);
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            int rank,
                                            int size,
                                            std::chrono::milliseconds timeout,
                                            const std::string& master_addr) {
  const NoSigpipe guard;  // and in the threads that Gloo makes here
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  choose_interface(*options, master_addr);
  return c10::make_intrusive<Gloo>(store, rank, size, options);
}

}  // namespace muster
