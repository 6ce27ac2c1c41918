// The client of a TcpServer: what a rank uses when its launcher tells MUSTER_STORE. A thread that
// blocks holds a connection of its own, so the others go on; connections are kept for the next
// call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/store/endpoint.h"
#include "muster/store/secret.h"
#include "muster/store/store.h"

namespace muster {

struct StoreRequest;
struct StoreReply;

struct TcpStoreOptions {
  Endpoint endpoint{};
  Secret secret{};    // empty: only a server that was told --no-auth takes it
  std::string job{};  // as the server's
  // To connect (the server may be starting), and for one answer.
  milliseconds timeout{30'000};
  // The server listens already, or is gone: then it is not waited for.
  bool is_served = false;
  // To connect later on; nothing: the timeout.
  std::optional<milliseconds> reconnect{};
};

class TcpStore final : public Store {
 public:
  // Connects and authenticates both ways.
  // Throws: unavailable naming the address (no server, name does not resolve, no room);
  // invalid_argument when the server's secret is another; failed_precondition when its job is;
  // timeout.
  explicit TcpStore(TcpStoreOptions options);
  ~TcpStore() override;

  // All of them throw, naming the address: StoreGone when the server has ended; unavailable when it
  // cannot be reached, or the connection broke; timeout when it does not answer.
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired) override;
  bool check(const Strings& keys) override;
  // Throws: invalid_argument where all together are larger than one value may be.
  StoreValues values(const Strings& keys) override;
  void wait(const Strings& keys, milliseconds timeout) override;
  int64_t append(const std::string& log, const std::string& entry) override;
  bool remove(const std::string& key) override;
  int64_t num_keys() override;

  // Has the server append `entry` to `log` when this process has ended, or this object has: once.
  // Where the connection for that breaks, the server knows nothing, and this is to be called again.
  void append_when_lost(const std::string& log, const std::string& entry);
  // Whether the connection of append_when_lost is whole.
  bool has_will() const;

 private:
  class Connection;

  // Sends the request on a free connection, and gives the reply; `waiting` is how long the server
  // may take by our own wish.
  StoreReply round_trip(const StoreRequest& request, milliseconds waiting = {});
  milliseconds patience() const;
  std::unique_ptr<Connection> take_connection();
  std::unique_ptr<Connection> connect_again();

  const TcpStoreOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::unique_ptr<Connection> will_;  // whose end tells the server that it has lost us
};

}  // namespace muster
