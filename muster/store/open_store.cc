// How it works: all endpoints are served by a TcpServer, over TCP or a unix socket.
#include "muster/store/open_store.h"

#include <memory>

#include "muster/store/tcp_store.h"

namespace muster {

SharedStore open_store(const std::string& endpoint, const Secret& secret, milliseconds timeout) {
  return std::make_shared<TcpStore>(
      TcpStoreOptions{.endpoint = parse_endpoint(endpoint), .secret = secret, .timeout = timeout});
}

SharedStore open_job_store(const std::string& endpoint, milliseconds timeout) {
  return open_store(endpoint, Secret::from_environment().value_or(Secret()), timeout);
}

}  // namespace muster
