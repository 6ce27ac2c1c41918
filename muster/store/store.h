// The rendezvous key-value store: how ranks find each other before there is a process group.
// Implementations: a file (file_store.h), TCP or a unix socket with authentication (tcp_store.h),
// and etcd (etcd_store.h). Values are bytes. Every function may be called from several threads; one
// that blocks does not stop the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// The process that served the store has ended: nobody listens there any more, and to wait helps
// nobody.
struct StoreGone : Error {
  using Error::Error;
};

// Limits of every implementation; beyond them: invalid_argument.
inline constexpr size_t kMaxKeyBytes = size_t{8} << 10;
inline constexpr size_t kMaxValueBytes = size_t{64} << 20;

// Of several keys: what each has; nothing where there is no such key.
using StoreValues = std::vector<std::optional<std::string>>;

// The keys of a log (Store::append): of its n-th entry, and of about how many it has.
std::string log_entry_key(const std::string& log, int64_t number);
std::string log_size_key(const std::string& log);

class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;

  // The value. A timeout of zero asks once. Blocking: until the key exists. Throws: timeout naming
  // the key.
  virtual std::string get(const std::string& key, milliseconds timeout) = 0;

  // Adds to a decimal counter (0 when absent) and returns the new value. Throws: invalid_argument
  // when the value is not a number, or the sum is out of range.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;

  // Sets `desired` if the value is `expected` (an absent key compares as ""); returns the value
  // afterwards, or `expected` when the key is absent and `expected` is not "" (PyTorch's rule).
  virtual std::string compare_set(const std::string& key,
                                  const std::string& expected,
                                  const std::string& desired) = 0;

  // True when all of `keys` exist.
  virtual bool check(const Strings& keys) = 0;

  // What each of `keys` has now; nothing where there is no such key. Not one moment for all.
  virtual StoreValues values(const Strings& keys);
  std::optional<std::string> value(const std::string& key) { return values({key})[0]; }

  // Blocking: until all of `keys` exist. Throws: timeout naming the first missing ones.
  virtual void wait(const Strings& keys, milliseconds timeout) = 0;

  // Adds an entry to the log `log` and returns its number, from 1. The log's entries are the keys
  // log_entry_key(log, 1), …, in an order that all see alike and without gaps. Every entry must be
  // unlike the others, for instance by saying who wrote it.
  virtual int64_t append(const std::string& log, const std::string& entry);

  // True when there was such a key.
  virtual bool remove(const std::string& key) = 0;

  virtual int64_t num_keys() = 0;

  // The largest value that it takes.
  virtual size_t max_value_bytes() const { return kMaxValueBytes; }
};
using SharedStore = std::shared_ptr<Store>;

}  // namespace muster
