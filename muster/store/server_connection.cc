// How it works: a stranger's bytes go into a place of fixed size, so that nobody without the secret
// can make the server keep more. After the proof, bytes go into a buffer from which whole frames
// are taken. Answers wait in another buffer for as long as the client does not take them.
#include "muster/store/server_connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/store/socket.h"

namespace muster {

namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
// An emptied buffer keeps no more room than this, so that idle clients cost little.
constexpr size_t kKeptBytes = size_t{64} << 10;

// All of the buffer was used up to `position`.
void empty(std::string& buffer, size_t& position) {
  position = 0;
  buffer.clear();
  if (buffer.capacity() > kKeptBytes)
    buffer.shrink_to_fit();
}

}  // namespace

// The nonce is new for each connection.
void ServerConnection::greet() {
  nonce_ = make_nonce();
  output_ = cat(kGreetingWelcome, nonce_);
  send_pending();
}

// One buffer serves all clients, since one thread reads them all.
ServerConnection::Received ServerConnection::receive() {
  static thread_local char buffer[kReadBytes];
  char* const to = is_stranger() ? proof_.data() + proof_size_ : buffer;
  const size_t most = is_stranger() ? proof_.size() - proof_size_ : sizeof(buffer);
  const ssize_t n = ::recv(fd_.get(), to, most, 0);
  if (n == 0)
    return Received::end;
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR)
      return Received::nothing;
    fail_errno(errno, "store server: cannot receive from ", host_);
  }
  if (is_stranger())
    proof_size_ += n;
  else
    input_.append(buffer, n);
  return Received::something;
}

// A client with another secret is told so before it is dropped, and one of another job that asks
// about that.
void ServerConnection::check_proof(const Secret& secret, const std::string& job) {
  if (proof_size_ < proof_.size())
    return;
  const std::string_view bytes(proof_.data(), proof_.size());
  const std::string address = to_string(local_address(fd_.get()));
  HandshakeFacts facts{.secret = secret,
                       .job = job,
                       .address = address,
                       .client_nonce = bytes.substr(0, kNonceBytes),
                       .server_nonce = nonce_};
  const auto is_proven = [&] {
    return equal_in_constant_time(make_proof(Side::client, facts), bytes.substr(kNonceBytes));
  };
  if (is_proven()) {
    reader_.emplace(make_session_key(Side::client, facts));
    writer_.emplace(make_session_key(Side::server, facts));
    output_ += make_proof(Side::server, facts);
    send_pending();
    return;
  }
  facts.job = kAnyJob;
  const bool is_of_another_job = is_proven();
  output_ += is_of_another_job ? make_proof(Side::server, facts) : std::string(kRefusal);
  send_pending();
  throw invalid_argument("store server: expected a client with this job's ",
                         is_of_another_job ? "name" : "secret",
                         ", got one with another (",
                         host_,
                         ")");
}

std::optional<StoreRequest> ServerConnection::next_request() {
  std::string_view rest = std::string_view(input_).substr(taken_);
  const auto body = reader_->take(rest);
  if (!body) {
    // The rest is the beginning of a frame, and stays at the buffer's front.
    if (taken_ > 0)
      input_.erase(0, std::exchange(taken_, 0));
    return std::nullopt;
  }
  StoreRequest request = decode_request(*body);
  taken_ = input_.size() - rest.size();
  if (rest.empty())
    empty(input_, taken_);
  return request;
}

// The frame goes behind those that are not sent yet.
void ServerConnection::reply(const StoreReply& reply) {
  writer_->append(output_, [&](std::string& out) { encode(reply, out); });
  send_pending();
}

// A client that takes no more now is given the rest when epoll says that there is room.
void ServerConnection::send_pending() {
  while (has_unsent()) {
    const ssize_t n =
        ::send(fd_.get(), output_.data() + sent_, output_.size() - sent_, MSG_NOSIGNAL);
    if (n >= 0) {
      sent_ += n;
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      fail_errno(errno, "store server: cannot send to ", host_);
    }
  }
  empty(output_, sent_);
}

}  // namespace muster
