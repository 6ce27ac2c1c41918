// The server's keys and the clients that wait for them: requests in, answers out, now or later.
// Called by tcp_server.cc from its one thread; knows nothing of sockets, so that a test needs none.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/store/table.h"
#include "muster/store/wire.h"

namespace muster {

class KeyService {
 public:
  using Client = uint64_t;
  using Answers = std::vector<std::pair<Client, StoreReply>>;

  // Appends the answers that this request brings about: the client's own, unless it has to wait,
  // and those of clients whose wait it ends.
  void handle(Client client, StoreRequest request, Answers& answers);

  // Appends the answers of those that have waited long enough.
  void expire(TimePoint now, Answers& answers);

  // When `expire` has something to do next.
  std::optional<TimePoint> next_deadline() const;

  bool is_waiting(Client client) const { return waits_.contains(client); }

  // The client's connection is no more, and it waits no more. Its process has ended: what it wanted
  // to be said then is. Its connection has broken: nothing is known of its process, which may live
  // and connect again.
  enum class Loss { ended, broken };
  void lose(Client client, Loss loss, Answers& answers);

 private:
  struct Wait {
    StoreRequest request;
    size_t at = 0;  // the missing key it is listed under
    TimePoint deadline;
  };

  void forget(Client client);
  int64_t append(const StoreRequest& request, Answers& answers);
  StoreReply answer_now(const StoreRequest& request, Answers& answers);
  void begin_wait(Client client, StoreRequest request, Answers& answers);
  void store(const std::string& key, std::string value, Answers& answers);
  StoreReply found(const StoreRequest& request) const;

  Table table_;
  std::unordered_map<Client, StoreRequest> last_wills_;
  std::unordered_map<Client, Wait> waits_;
  std::unordered_map<std::string, std::vector<Client>> by_missing_key_;
  std::set<std::pair<TimePoint, Client>> deadlines_;
};

}  // namespace muster
