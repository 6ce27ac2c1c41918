// How it works: a request takes a free connection or makes a new one, sends a frame and waits for
// the answer's. A connection on which anything failed is closed, since the frames of its two ends
// may no longer fit together. The will has a connection of its own, whose end tells the server that
// this process has ended.
#include "muster/store/tcp_store.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/store/frame.h"
#include "muster/store/handshake.h"
#include "muster/store/socket.h"
#include "muster/store/table.h"
#include "muster/store/wire.h"

namespace muster {

using Operation = StoreRequest::Operation;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{100};
constexpr milliseconds kLeastPatience{1000};
constexpr size_t kKeptBufferBytes = size_t{1} << 20;
constexpr auto kRefused = "it refused ours";

// One authenticated connection: one request, then its reply, in turn.
class TcpStore::Connection {
 public:
  Connection(const TcpStoreOptions& options, IfRefused if_refused);
  StoreReply exchange(const StoreRequest& request, milliseconds timeout);
  bool is_whole() const;  // between two exchanges

 private:
  void open(const TcpStoreOptions& options, IfRefused if_refused, const Deadline& deadline);
  std::string receive_greeting();
  std::string refusal(const TcpStoreOptions& options, std::string_view job);
  void set_timeout(milliseconds timeout);
  void send_all(std::string_view bytes);
  size_t receive(char* to, size_t size);
  std::string receive_exactly(size_t size);
  [[noreturn]] void lost(const std::string& how) const;

  Fd fd_;
  std::string where_;
  milliseconds timeout_{0};
  bool greeted_ = false;  // it is a muster server that answers
  std::optional<FrameReader> reader_;
  std::optional<FrameWriter> writer_;
  std::string output_, input_;
};

TcpStore::Connection::Connection(const TcpStoreOptions& options, IfRefused if_refused)
    : where_(to_string(options.endpoint)) {
  const Deadline deadline(bounded_timeout(options.timeout));
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      open(options, if_refused, deadline);
      return;
    } catch (const Error& error) {
      // A server that has no room now, or gave ours to somebody else, may have some in a moment.
      const bool again = greeted_ && error.code() == ErrorCode::unavailable;
      if (!again || deadline.left() <= pause)
        throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

// A connection that failed half way leaves nothing behind. What refuses the job may know its
// secret: then another job has the address.
void TcpStore::Connection::open(const TcpStoreOptions& options,
                                IfRefused if_refused,
                                const Deadline& deadline) {
  const auto refusal_of = [&](std::string_view job) {
    greeted_ = false;
    timeout_ = {};
    fd_ = connect_to(options.endpoint, if_refused, deadline);
    tune(fd_.get());
    set_timeout(std::max(deadline.left(), milliseconds(100)));
    return refusal(options, job);
  };
  const std::string refused = refusal_of(options.job);
  if (refused.empty())
    return;
  if (refused == kRefused && refusal_of(kAnyJob).empty()) {
    throw failed_precondition(
        "store: expected the server at ",
        where_,
        " to be that of job '",
        printable(options.job),
        "' (--rdzv-id), got another job's, which has the same secret; give every host "
        "of a job the same --rdzv-id, and each job an endpoint of its own");
  }
  throw invalid_argument("store: expected the job's secret to be that of the server at ",
                         where_,
                         ", got: ",
                         refused,
                         options.secret.empty() ? " (none)" : "",
                         "; give the job's secret with --secret-file, MUSTER_SECRET_FILE or "
                         "MUSTER_SECRET_FD");
}

// The first message says whether a muster server is there, and whether it has room.
std::string TcpStore::Connection::receive_greeting() {
  std::string greeting = receive_exactly(kGreetingBytes);
  greeted_ = greeting.starts_with(kGreetingFull) || greeting.starts_with(kGreetingWelcome);
  if (greeting.starts_with(kGreetingFull))
    throw ServerUnreachable(ErrorCode::unavailable,
                            cat("store: expected room for a client at ",
                                where_,
                                ", got: its process has no descriptor left"),
                            "raise its limit (ulimit -n)");
  if (!greeted_)
    throw ServerUnreachable(
        ErrorCode::unavailable,
        cat("store: expected a muster store at ", where_, ", got another program"),
        "check the address");
  return greeting;
}

// Both sides prove that they know the secret, the client first. Returns how the server has not;
// empty: the connection is the job's.
std::string TcpStore::Connection::refusal(const TcpStoreOptions& options, std::string_view job) {
  const auto greeting = receive_greeting();
  const std::string address = to_string(peer_address(fd_.get()));
  const auto nonce = make_nonce();
  const HandshakeFacts facts{
      .secret = options.secret,
      .job = job,
      .address = address,
      .client_nonce = nonce,
      .server_nonce = std::string_view(greeting).substr(kGreetingWelcome.size())};
  send_all(cat(nonce, make_proof(Side::client, facts)));
  const auto answer = receive_exactly(kProofBytes);
  if (!equal_in_constant_time(answer, make_proof(Side::server, facts)))
    return answer == kRefusal ? kRefused : "it does not know ours";
  writer_.emplace(make_session_key(Side::client, facts));
  reader_.emplace(make_session_key(Side::server, facts));
  return "";
}

// Buffers that a large value has made large are given back.
StoreReply TcpStore::Connection::exchange(const StoreRequest& request, milliseconds timeout) {
  set_timeout(timeout);
  output_.clear();
  writer_->append(output_, [&](std::string& out) { encode(request, out); });
  send_all(output_);
  input_.clear();
  for (;;) {
    std::string_view bytes = input_;
    if (const auto body = reader_->take(bytes)) {
      StoreReply reply = decode_reply(*body);
      if (output_.capacity() > kKeptBufferBytes)
        output_ = {};
      if (input_.capacity() > kKeptBufferBytes)
        input_ = {};
      return reply;
    }
    constexpr size_t kLeast = 512;
    constexpr size_t kMost = size_t{1} << 20;
    const size_t before = input_.size();
    input_.resize(before + std::clamp(FrameReader::lacking(input_), kLeast, kMost));
    input_.resize(before + receive(input_.data() + before, input_.size() - before));
  }
}

// The server says nothing unasked, so that anything to read is an end.
bool TcpStore::Connection::is_whole() const {
  char byte = 0;
  return ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

// The kernel ends a send or a receive that takes longer.
void TcpStore::Connection::set_timeout(milliseconds timeout) {
  if (timeout == timeout_)
    return;
  timeout_ = timeout;
  timeval value{};
  value.tv_sec = timeout.count() / 1000;
  value.tv_usec = timeout.count() % 1000 * 1000;
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (::setsockopt(fd_.get(), SOL_SOCKET, option, &value, sizeof(value)) != 0)
      fail_errno("store: cannot set a socket's timeout", errno);
  }
}

// A socket's timeout ends it with an error.
void TcpStore::Connection::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(n);
    } else if (errno != EINTR) {
      lost("cannot send");
    }
  }
}

// Returns the number of bytes received, at least one.
size_t TcpStore::Connection::receive(char* to, size_t size) {
  const Deadline deadline(timeout_);
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), to, size, 0);
    if (n > 0)
      return n;
    if (n == 0) {
      errno = ECONNRESET;
      lost("it closed the connection");
    }
    if (errno != EINTR || deadline.passed())
      lost("cannot receive");
  }
}

// The handshake's messages have fixed sizes.
std::string TcpStore::Connection::receive_exactly(size_t size) {
  std::string bytes(size, '\0');
  for (size_t have = 0; have < size;)
    have += receive(bytes.data() + have, size - have);
  return bytes;
}

// errno says whether time ran out or the connection broke.
void TcpStore::Connection::lost(const std::string& how) const {
  const int error = errno;
  if (error == EAGAIN || error == EINTR)
    throw ServerUnreachable(ErrorCode::timeout,
                            cat("store: expected an answer of the server at ",
                                where_,
                                " within ",
                                format_duration(timeout_),
                                ", got none"),
                            "is its process stopped?");
  throw ServerUnreachable(ErrorCode::unavailable,
                          cat("store: expected the server at ",
                              where_,
                              " to be there, got: ",
                              how,
                              " (",
                              std::generic_category().message(error),
                              ")"),
                          "the launcher or rank that served it has ended");
}

// The first connection is made at once, so that a wrong secret is told here.
TcpStore::TcpStore(TcpStoreOptions options) : options_(std::move(options)) {
  const IfRefused if_refused = options_.is_served ? IfRefused::fail : IfRefused::retry;
  idle_.push_back(std::make_unique<Connection>(options_, if_refused));
}

TcpStore::~TcpStore() = default;

// The lock is not held while a connection is made.
std::unique_ptr<TcpStore::Connection> TcpStore::take_connection() {
  {
    const Lock lock(mutex_);
    if (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return connect_again();
}

// The server was there, so that nobody waits for it to start.
std::unique_ptr<TcpStore::Connection> TcpStore::connect_again() {
  TcpStoreOptions options = options_;
  options.timeout = options.reconnect.value_or(options.timeout);
  return std::make_unique<Connection>(options, IfRefused::fail);
}

// The time that an answer may take when the server does not wait by our own wish.
milliseconds TcpStore::patience() const {
  return std::max(bounded_timeout(options_.timeout), kLeastPatience);
}

// A connection on which anything failed is not given back: its next frame would not be the expected
// one.
StoreReply TcpStore::round_trip(const StoreRequest& request, milliseconds waiting) {
  auto connection = take_connection();
  StoreReply reply = connection->exchange(request, patience() + waiting);
  {
    const Lock lock(mutex_);
    idle_.push_back(std::move(connection));
  }
  if (reply.ok)
    return reply;
  if (reply.code == ErrorCode::timeout)
    throw missing_keys_error(to_string(request.operation),
                             reply.text,
                             milliseconds(request.number),
                             to_string(options_.endpoint));
  throw Error(reply.code, reply.text);
}

void TcpStore::set(const std::string& key, const std::string& value) {
  check_limits("set", key, value);
  round_trip({.operation = Operation::set, .keys = {key}, .value = value});
}

// The server may take as long as the caller is willing to wait.
std::string TcpStore::get(const std::string& key, milliseconds timeout) {
  check_limits("get", key);
  const auto bounded = bounded_timeout(timeout);
  return round_trip({.operation = Operation::get, .keys = {key}, .number = bounded.count()},
                    bounded)
      .text;
}

int64_t TcpStore::add(const std::string& key, int64_t amount) {
  check_limits("add", key);
  return round_trip({.operation = Operation::add, .keys = {key}, .number = amount}).number;
}

std::string TcpStore::compare_set(const std::string& key,
                                  const std::string& expected,
                                  const std::string& desired) {
  check_limits("compare_set", key, expected);
  check_limits("compare_set", key, desired);
  return round_trip({.operation = Operation::compare_set,
                     .keys = {key},
                     .value = desired,
                     .expected = expected})
      .text;
}

bool TcpStore::check(const Strings& keys) {
  check_limits("check", keys);
  return round_trip({.operation = Operation::check, .keys = keys}).number != 0;
}

StoreValues TcpStore::values(const Strings& keys) {
  check_limits("values", keys);
  const StoreReply reply = round_trip({.operation = Operation::values, .keys = keys});
  return decode_values(reply.text, keys.size());
}

void TcpStore::wait(const Strings& keys, milliseconds timeout) {
  check_limits("wait", keys);
  const auto bounded = bounded_timeout(timeout);
  round_trip({.operation = Operation::wait, .keys = keys, .number = bounded.count()}, bounded);
}

int64_t TcpStore::append(const std::string& log, const std::string& entry) {
  check_limits("append", log_entry_key(log, INT64_MAX), entry);
  return round_trip({.operation = Operation::append, .keys = {log}, .value = entry}).number;
}

// An earlier will is replaced, together with its connection.
void TcpStore::append_when_lost(const std::string& log, const std::string& entry) {
  check_limits("append_when_lost", log_entry_key(log, INT64_MAX), entry);
  auto connection = connect_again();
  const StoreReply reply = connection->exchange(
      {.operation = Operation::append_when_lost, .keys = {log}, .value = entry}, patience());
  if (!reply.ok)
    throw Error(reply.code, reply.text);
  will_ = std::move(connection);
}

// False when no will was made, or when its connection has broken.
bool TcpStore::has_will() const {
  return will_ != nullptr && will_->is_whole();
}

bool TcpStore::remove(const std::string& key) {
  check_limits("remove", key);
  return round_trip({.operation = Operation::remove, .keys = {key}}).number != 0;
}

int64_t TcpStore::num_keys() {
  return round_trip({.operation = Operation::num_keys}).number;
}

}  // namespace muster
