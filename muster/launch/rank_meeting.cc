#include "muster/launch/rank_meeting.h"

namespace muster {

RankMeeting::RankMeeting(const RankMeetingOptions& options) : port_(options.master_port) {
  TcpServerOptions server{.secret = options.secret, .no_auth = options.no_auth};
  server.endpoint.host = options.address;
  if (server.secret.empty() && !options.no_auth) server.secret = Secret::make();
  if (!server.secret.empty()) secret_fd_ = server.secret.to_memfd();
  store_ = std::make_unique<TcpServer>(std::move(server));
}

}  // namespace muster
