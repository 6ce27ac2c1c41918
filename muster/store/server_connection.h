// One client of the TCP server: its handshake, its frames, its unsent answers. Called by
// tcp_server.cc from its one thread; knows nothing of keys or of other clients. Any function may
// throw Error: drop the connection.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/fd.h"
#include "muster/store/frame.h"
#include "muster/store/handshake.h"
#include "muster/store/wire.h"

namespace muster {

class ServerConnection {
 public:
  enum class Received { something, nothing, end };

  // `fd` is non-blocking, `host` the peer's, for messages and limits.
  ServerConnection(Fd fd, std::string host) : fd_(std::move(fd)), host_(std::move(host)) {}

  // Sends the greeting and this connection's nonce. Throws: io.
  void greet();

  // Reads once. From a stranger never more than the bytes of its proof that are still to come.
  Received receive();

  // Lets the stranger in when its proof has come whole and is right. Throws: invalid_argument when
  // it is wrong.
  void check_proof(const Secret& secret, const std::string& job);

  // The next request received, if it is whole. Throws: io.
  std::optional<StoreRequest> next_request();

  // Sends an answer, or as much of it as the client takes now. Throws: io.
  void reply(const StoreReply& reply);
  void send_pending();

  int fd() const { return fd_.get(); }
  const std::string& host() const { return host_; }
  bool is_stranger() const { return !reader_; }
  size_t stranger_bytes() const { return proof_size_; }
  bool has_unsent() const { return sent_ < output_.size(); }
  bool has_unread() const { return taken_ < input_.size(); }

 private:
  Fd fd_;
  std::string host_;
  std::string nonce_;
  std::array<char, kClientProofBytes> proof_{};  // all that a stranger can fill
  size_t proof_size_ = 0;
  std::optional<FrameReader> reader_;
  std::optional<FrameWriter> writer_;
  std::string input_;  // frames not yet taken
  size_t taken_ = 0;
  std::string output_;  // frames not yet sent
  size_t sent_ = 0;
};

}  // namespace muster
