// What the store's tests share: a temporary folder, child processes, and a client that speaks the
// protocol by hand in order to break it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/store/frame.h"
#include "muster/store/handshake.h"
#include "muster/store/socket.h"
#include "muster/store/tcp_server.h"
#include "muster/store/tcp_store.h"
#include "muster/store/wire.h"

namespace muster::store_test {

constexpr auto kLong =
    std::chrono::milliseconds(30'000);  // longer than any wait that is to succeed

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster-store-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A forked process that runs `body(say)`; what it says is heard by `hear`, one byte at a time in
// order.
class ChildProcess {
 public:
  using Say = std::function<void(const std::string&)>;

  explicit ChildProcess(const std::function<void(const Say&)>& body) {
    int ends[2];
    if (::pipe(ends) != 0)
      throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      int status = 0;
      try {
        body([&](const std::string& text) { write_all(ends[1], text + "\n"); });
      } catch (const std::exception& error) {
        write_all(ends[1], std::string("error: ") + error.what() + "\n");
        status = 1;
      }
      ::_exit(status);
    }
    ::close(ends[1]);
    from_.reset(ends[0]);
  }
  ~ChildProcess() {
    if (pid_ > 0)
      kill();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line it says; empty when it has ended.
  std::string hear() {
    std::string line;
    char c = 0;
    while (::read(from_.get(), &c, 1) == 1 && c != '\n')
      line += c;
    return line;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    join();
  }
  int join() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  Fd from_;
};

// Waits in a forked child until somebody kills it.
[[noreturn]] inline void wait_to_be_killed() {
  for (;;)
    ::pause();
}

// The message of the Error that `body` throws, whose code must be `code`.
inline std::string error_of(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_STREQ(to_string(error.code()), to_string(code)) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "expected an Error";
  return {};
}

// The protocol by hand.
class RawClient {
 public:
  explicit RawClient(const Endpoint& endpoint)
      : fd_(connect_to(endpoint, IfRefused::fail, Deadline(kLong))),
        address_(to_string(peer_address(fd_.get()))) {}

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0)
        return;  // the server may have had enough
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  // `size` bytes, or fewer when the server closes before.
  std::string receive(size_t size) const {
    std::string bytes(size, '\0');
    size_t have = 0;
    while (have < size) {
      const ssize_t n = ::recv(fd_.get(), bytes.data() + have, size - have, 0);
      if (n <= 0)
        break;
      have += static_cast<size_t>(n);
    }
    bytes.resize(have);
    return bytes;
  }
  // Blocking: until the server closes, whatever it sends before.
  bool closed() const {
    char byte = 0;
    pollfd waiting{fd_.get(), POLLIN, 0};
    for (;;) {
      if (::poll(&waiting, 1, static_cast<int>(kLong.count())) <= 0)
        return false;
      if (::recv(fd_.get(), &byte, 1, 0) <= 0)
        return true;
    }
  }

  // True when the server let us in.
  bool authenticate(const Secret& secret) {
    const std::string greeting = receive(kGreetingBytes);
    const std::string nonce = make_nonce();
    const HandshakeFacts facts{
        .secret = secret,
        .job = "",
        .address = address_,
        .client_nonce = nonce,
        .server_nonce = std::string_view(greeting).substr(kGreetingWelcome.size())};
    send(nonce + make_proof(Side::client, facts));
    const bool in = receive(kProofBytes) == make_proof(Side::server, facts);
    writer.emplace(make_session_key(Side::client, facts));
    reader.emplace(make_session_key(Side::server, facts));
    return in;
  }
  std::string frame(const StoreRequest& request) {
    std::string bytes;
    writer->append(bytes, [&](std::string& out) { encode(request, out); });
    return bytes;
  }
  // The bytes of the next frame from the server.
  std::string receive_frame() const {
    std::string bytes = receive(kFrameSizeBytes);
    return bytes + receive(FrameReader::lacking(bytes));
  }

  std::optional<FrameWriter> writer;
  std::optional<FrameReader> reader;

 private:
  Fd fd_;
  std::string address_;
};

}  // namespace muster::store_test
