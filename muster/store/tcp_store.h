// The client of a TcpServer: what a rank uses when its launcher tells MUSTER_STORE. A thread that blocks
// holds a connection of its own, so the others go on; connections are kept for the next call.
#pragma once

#include <mutex>

#include "muster/store/endpoint.h"
#include "muster/store/secret.h"
#include "muster/store/store.h"

namespace muster {

struct StoreRequest;
struct StoreReply;

struct TcpStoreOptions {
  Endpoint endpoint{};
  Secret secret{};                            // empty: only a server that was told --no-auth takes it
  std::string job{};                          // as the server's
  std::chrono::milliseconds timeout{30'000};  // to connect (the server may be starting); for one answer
};

class TcpStore final : public Store {
 public:
  // Connects and authenticates both ways.
  // Throws: unavailable naming the address (no server, name does not resolve, no room); invalid_argument when
  // the server's secret is another; timeout.
  explicit TcpStore(TcpStoreOptions options);
  ~TcpStore() override;

  // All of them throw unavailable, naming the address, when the server is gone.
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  int64_t append(const std::string& log, const std::string& entry) override;
  bool remove(const std::string& key) override;
  int64_t num_keys() override;

  // Has the server append `entry` to `log` when it loses this client: at the latest when this object goes, at
  // once when the process is killed, after half a minute when its host vanishes. Once.
  void append_when_lost(const std::string& log, const std::string& entry);

 private:
  class Connection;

  // Sends the request on a free connection, and gives the reply; `waiting` is how long the server may take by
  // our own wish.
  StoreReply round_trip(const StoreRequest& request, std::chrono::milliseconds waiting = {});
  std::unique_ptr<Connection> take_connection();

  const TcpStoreOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::unique_ptr<Connection> will_;  // whose end tells the server that it has lost us
};

}  // namespace muster
