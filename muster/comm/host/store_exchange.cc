// Each group that meets over the store has a prefix of its own: a rank counts there how often it
// has met, which all ranks do equally often.
#include "muster/comm/host/store_exchange.h"

#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/strings.h"

namespace muster {

shm::Exchange exchange_over(const StorePtr& given, int rank, milliseconds timeout) {
  const int64_t generation = given->add(cat("generation/", rank), 1);
  const auto store = store_part(given, cat(generation));
  return {
      .set = [store](const std::string& key, const std::string& value) { store->set(key, value); },
      .get =
          [store, timeout](const std::string& key) {
            store->wait({key}, timeout);
            return store->get_to_str(key);
          }};
}

}  // namespace muster
