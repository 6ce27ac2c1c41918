// The ranks get the store's secret as a descriptor of memory: it stands in no file, and in nobody's
// environment.
#include "muster/launch/rank_rendezvous.h"

#include <chrono>
#include <utility>

#include "muster/base/clock.h"
#include "muster/store/open_store.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kOwnStoreAnswers{10};  // on loopback, in a thread of this process

}  // namespace

RankRendezvous::RankRendezvous(const RankRendezvousOptions& options) : port_(options.master_port) {
  TcpServerOptions server{.secret = options.secret, .no_auth = options.no_auth};
  server.endpoint.host = options.address;
  if (server.secret.empty() && !options.no_auth)
    server.secret = Secret::make();
  if (!server.secret.empty())
    secret_fd_ = server.secret.to_memfd();
  secret_ = server.secret;
  store_ = std::make_unique<TcpServer>(std::move(server));
}

SharedStore RankRendezvous::open() const {
  return open_store(store(), secret_, kOwnStoreAnswers);
}

}  // namespace muster
