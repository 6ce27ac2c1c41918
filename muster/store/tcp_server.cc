// How it works: one thread and one epoll. A new connection is a stranger until it has proved that
// it knows the secret; strangers have a deadline and limited room. Requests go to a KeyService,
// which says whom to answer. When descriptors run out, the oldest stranger goes, and without
// strangers a spare descriptor serves to tell the newcomer that there is no room.
#include "muster/store/tcp_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/poll_one.h"
#include "muster/base/strings.h"
#include "muster/store/key_service.h"
#include "muster/store/server_connection.h"
#include "muster/store/socket.h"

namespace muster {

namespace {

constexpr uint64_t kStop = 0;      // epoll's names: not connections
constexpr uint64_t kListener = 1;  // connections are numbered from 2
constexpr int kAcceptAtOnce = 16;
constexpr milliseconds kAcceptPause{100};

// Any file would do.
Fd spare_descriptor() {
  return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Shortages that another connection's end can mend.
bool is_out_of_descriptors(int error) {
  return is_one_of(error, EMFILE, ENFILE, ENOBUFS, ENOMEM);
}

// Over a unix socket the kernel tells who the peer is: another user has no business here.
bool is_foreign_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return true;
  return peer.uid != ::geteuid() && peer.uid != 0;
}

}  // namespace

class TcpServer::Loop {
 public:
  explicit Loop(TcpServerOptions options);
  ~Loop();

  const Endpoint& endpoint() const { return options_.endpoint; }
  Stats stats() const;

 private:
  using Id = uint64_t;
  struct Client {
    ServerConnection connection;
    TimePoint proof_deadline;
    bool waits_to_send = false;  // epoll watches for room instead of input
  };

  void check_options() const;
  void serve();
  int milliseconds_to_next_deadline() const;
  void accept_some();
  bool accept_one();
  bool turn_away();
  void admit(Fd fd);
  void drop_oldest_stranger();
  static bool transfer(ServerConnection& connection, uint32_t events);
  bool let_in(Id id, Client& client);
  void on_event(Id id, uint32_t events);
  void advance(Id id, Client& client);
  void deliver(const KeyService::Answers& answers);
  void watch(Id id, Client& client);
  void on_deadlines();
  void drop(Id id, const std::string& why, KeyService::Loss loss = KeyService::Loss::broken);
  void leave_strangers(Id id, const Client& client);
  void control(int operation, int fd, uint32_t events, uint64_t name) const;

  TcpServerOptions options_;
  Fd epoll_, stop_, listener_, spare_;
  std::optional<TimePoint> listener_resumes_;
  std::unordered_map<Id, Client> clients_;
  std::set<std::pair<TimePoint, Id>> strangers_;  // oldest first
  KeyService service_;
  Id next_id_ = 2;
  std::atomic<uint64_t> authenticated_{0}, turned_away_{0}, dropped_{0}, stranger_bytes_{0},
      broken_{0};
  std::thread thread_;
};

// To serve without a secret must be said.
void TcpServer::Loop::check_options() const {
  if (options_.secret.empty() && !options_.no_auth)
    throw failed_precondition("store server: expected a secret for ",
                              to_string(options_.endpoint),
                              ", got none; make one with `muster secret`, or say --no-auth");
  if (!options_.secret.empty() && options_.no_auth)
    throw invalid_argument(
        "store server: expected a secret or --no-auth, got both; leave one of them out");
}

TcpServer::Loop::Loop(TcpServerOptions options) : options_(std::move(options)) {
  check_options();
  listener_ = listen_on(options_.endpoint, Deadline(std::chrono::seconds(10)));
  if (options_.no_auth && !is_loopback(local_address(listener_.get())))
    log_warning("store server on ",
                to_string(options_.endpoint),
                " has no authentication: whoever reaches it can change the job");
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_ = spare_descriptor();
  if (!epoll_.valid() || !stop_.valid() || !spare_.valid())
    fail_errno("store server: cannot start", errno);
  control(EPOLL_CTL_ADD, stop_.get(), EPOLLIN, kStop);
  control(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener);
  // The program's signal handlers run in its own threads, never in this one.
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { serve(); });
}

TcpServer::Loop::~Loop() {
  const uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  if (options_.endpoint.kind == Endpoint::Kind::unix_socket)
    ::unlink(options_.endpoint.path.c_str());
}

TcpServer::Stats TcpServer::Loop::stats() const {
  return {.authenticated = authenticated_,
          .dropped = dropped_,
          .stranger_bytes = stranger_bytes_,
          .broken = broken_};
}

// The thread runs this until the destructor writes to stop_.
void TcpServer::Loop::serve() {
  constexpr int kMostEvents = 64;
  std::array<epoll_event, kMostEvents> events;
  for (;;) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), kMostEvents, milliseconds_to_next_deadline());
    for (const epoll_event& event : std::span(events).first(std::max(count, 0))) {
      if (event.data.u64 == kStop)
        return;
      if (event.data.u64 == kListener)
        accept_some();
      else
        on_event(event.data.u64, event.events);
    }
    on_deadlines();
  }
}

// At most a minute, after which the loop just looks again.
int TcpServer::Loop::milliseconds_to_next_deadline() const {
  auto next = Clock::now() + std::chrono::minutes(1);
  if (const auto wait = service_.next_deadline())
    next = std::min(next, *wait);
  if (!strangers_.empty())
    next = std::min(next, strangers_.begin()->first);
  if (listener_resumes_)
    next = std::min(next, *listener_resumes_);
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

// A crowd of new ones must neither keep those inside waiting nor push out those whose proof has
// come.
void TcpServer::Loop::accept_some() {
  for (int i = 0; i < kAcceptAtOnce && accept_one(); ++i) {
  }
}

// False when there is nobody more to accept now. A stranger that only holds a connection makes room
// for one that may be a rank.
bool TcpServer::Loop::accept_one() {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    admit(std::move(fd));
    return true;
  }
  if (is_out_of_descriptors(errno)) {
    if (poll_one(listener_.get(), POLLIN, 0) <= 0)
      return false;  // accept says so even when nobody is there
    if (strangers_.empty())
      return turn_away();
    drop_oldest_stranger();
    return true;
  }
  return errno == ECONNABORTED || errno == EINTR || errno == EPROTO;
}

// Tells one client that there is no room, with the descriptor kept for that: left in the queue, it
// would wait for nothing and keep this loop spinning. False when there was none (accept needs a
// descriptor even to find that out).
bool TcpServer::Loop::turn_away() {
  bool someone = false;
  spare_.reset();
  {
    const Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    someone = fd.valid();
    if (someone) {
      const auto greeting = cat(kGreetingFull, std::string(kNonceBytes, '\0'));
      (void)!::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      if (++turned_away_ == 1)
        log_warning("store server: no descriptor left for a client; raise the limit (ulimit -n)");
    }
  }
  spare_ = spare_descriptor();
  if (spare_.valid())
    return someone;
  // Another thread took the spare one: look again in a while.
  control(EPOLL_CTL_MOD, listener_.get(), 0, kListener);
  listener_resumes_ = Clock::now() + kAcceptPause;
  return false;
}

// The connection is a stranger from now on, unless another user has made it.
void TcpServer::Loop::admit(Fd fd) {
  const Id id = next_id_++;
  try {
    const bool tcp = options_.endpoint.kind == Endpoint::Kind::tcp;
    if (!tcp && is_foreign_user(fd.get())) {
      ++dropped_;
      return;
    }
    if (tcp)
      tune(fd.get());
    std::string host = tcp ? host_of(peer_address(fd.get())) : "unix";
    ServerConnection connection(std::move(fd), std::move(host));
    connection.greet();
    if (strangers_.size() >= std::max<size_t>(1, options_.max_strangers))
      drop_oldest_stranger();
    control(EPOLL_CTL_ADD, connection.fd(), EPOLLIN, id);
    const auto deadline = Clock::now() + options_.handshake_timeout;
    strangers_.emplace(deadline, id);
    clients_.emplace(id, Client{std::move(connection), deadline});
  } catch (const std::exception& error) {
    ++dropped_;
    log_debug(error.what());
  }
}

// There is one, as the caller knows.
void TcpServer::Loop::drop_oldest_stranger() {
  drop(strangers_.begin()->second, "other clients need its place");
}

// True when the client has closed its connection.
bool TcpServer::Loop::transfer(ServerConnection& connection, uint32_t events) {
  if ((events & EPOLLOUT) != 0)
    connection.send_pending();
  const bool has_input = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
  return has_input && connection.receive() == ServerConnection::Received::end;
}

// True when the client is no stranger any more.
bool TcpServer::Loop::let_in(Id id, Client& client) {
  client.connection.check_proof(options_.secret, options_.job);
  if (client.connection.is_stranger())
    return false;
  leave_strangers(id, client);
  ++authenticated_;
  return true;
}

// A client whose bytes make no sense is dropped, and the others go on.
void TcpServer::Loop::on_event(Id id, uint32_t events) {
  Client* const found = value_at(clients_, id);
  if (found == nullptr)
    return;  // an earlier event of this wait has dropped it
  Client& client = *found;
  try {
    if (transfer(client.connection, events))
      return drop(id, "it closed the connection", KeyService::Loss::ended);
    if (client.connection.is_stranger() && !let_in(id, client))
      return;
    advance(id, client);
  } catch (const std::exception& error) {
    if (!client.connection.is_stranger())
      ++broken_;
    drop(id, error.what());
  }
}

// Answers the client's requests. A client asks one thing at a time, so one that speaks while it
// waits is none.
void TcpServer::Loop::advance(Id id, Client& client) {
  KeyService::Answers answers;
  while (!client.connection.has_unsent()) {
    if (service_.is_waiting(id)) {
      if (client.connection.has_unread())
        throw Error(ErrorCode::io,
                    "store server: expected a waiting client to wait, got another request");
      break;
    }
    auto request = client.connection.next_request();
    if (!request)
      break;
    service_.handle(id, std::move(*request), answers);
    deliver(answers);
    answers.clear();
    if (!clients_.contains(id))
      return;
  }
  watch(id, client);
}

// Clients may have gone since they were answered.
void TcpServer::Loop::deliver(const KeyService::Answers& answers) {
  for (const auto& [id, reply] : answers) {
    Client* const client = value_at(clients_, id);
    if (client == nullptr)
      continue;
    try {
      client->connection.reply(reply);
      watch(id, *client);
    } catch (const std::exception& error) {
      drop(id, error.what());
    }
  }
}

// While an answer waits to be sent, nothing is read from the client.
void TcpServer::Loop::watch(Id id, Client& client) {
  const bool waits_to_send = client.connection.has_unsent();
  if (waits_to_send == client.waits_to_send)
    return;
  client.waits_to_send = waits_to_send;
  control(EPOLL_CTL_MOD, client.connection.fd(), waits_to_send ? EPOLLOUT : EPOLLIN, id);
}

// Strangers, requests that wait and the listener each have deadlines.
void TcpServer::Loop::on_deadlines() {
  const auto now = Clock::now();
  while (!strangers_.empty() && strangers_.begin()->first <= now)
    drop(strangers_.begin()->second, "it did not prove in time that it knows the secret");
  KeyService::Answers answers;
  service_.expire(now, answers);
  deliver(answers);
  if (listener_resumes_ && *listener_resumes_ <= now) {
    listener_resumes_.reset();
    if (!spare_.valid())
      spare_ = spare_descriptor();
    control(EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListener);
  }
}

// The client's last will, if it has one, may answer others.
void TcpServer::Loop::drop(Id id, const std::string& why, KeyService::Loss loss) {
  const auto found = clients_.find(id);
  const Client& client = found->second;
  log_debug("store server: client ", id, " of ", client.connection.host(), " dropped: ", why);
  if (client.connection.is_stranger()) {
    ++dropped_;
    stranger_bytes_ += client.connection.stranger_bytes();
    leave_strangers(id, client);
  }
  clients_.erase(found);
  KeyService::Answers answers;
  service_.lose(id, loss, answers);
  deliver(answers);
}

void TcpServer::Loop::leave_strangers(Id id, const Client& client) {
  strangers_.erase({client.proof_deadline, id});
}

// epoll gives the name back with each event.
void TcpServer::Loop::control(int operation, int fd, uint32_t events, uint64_t name) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = name;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
    fail_errno("store server: cannot watch a connection", errno);
}

TcpServer::TcpServer(TcpServerOptions options)
    : loop_(std::make_unique<Loop>(std::move(options))) {}
TcpServer::~TcpServer() = default;

const Endpoint& TcpServer::endpoint() const {
  return loop_->endpoint();
}

TcpServer::Stats TcpServer::stats() const {
  return loop_->stats();
}

}  // namespace muster
