// The meaning of the store's operations, on a plain map: one definition for every implementation.
// Called by the memory store, the file store and the server, each under its own lock. Knows nothing
// of waiting, threads, files or sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/store/store.h"

namespace muster {

class Table {
 public:
  // What compare_set would do: the value it returns, and whether `desired` is to be set.
  struct Comparison {
    bool store = false;
    std::string result;
  };

  void set(const std::string& key, std::string value) { values_[key] = std::move(value); }
  bool remove(const std::string& key) { return values_.erase(key) > 0; }
  void clear() { values_.clear(); }

  // The value, or null. Valid until the next change.
  const std::string* find(const std::string& key) const;
  int64_t size() const { return std::ssize(values_); }
  // What each of `keys` has; nothing where it is absent.
  StoreValues values(const Strings& keys) const;

  // The counter's next value, not yet stored. Throws: invalid_argument.
  int64_t sum(const std::string& key, int64_t amount) const;

  // What compare_set finds, not yet stored.
  Comparison compare(const std::string& key,
                     const std::string& expected,
                     const std::string& desired) const;

  // Index of the first key at or after `from` that is absent; keys.size() when there is none.
  size_t first_missing(const Strings& keys, size_t from = 0) const;

  // The absent ones of `keys`, quoted, for a message: "'a', 'b' and 7 more".
  std::string describe_missing(const Strings& keys) const;

 private:
  std::unordered_map<std::string, std::string> values_;
};

// Throws: invalid_argument naming the operation when a key or a value is larger than the store's
// limits.
void check_limits(std::string_view operation,
                  const std::string& key,
                  const std::string& value = {});
void check_limits(std::string_view operation, const Strings& keys);

// The error of a wait that ended without its keys; `missing` as by describe_missing.
Error missing_keys_error(std::string_view operation,
                         const std::string& missing,
                         milliseconds timeout,
                         const std::string& where);

// A caller's timeout brought into a range that can be added to any clock: 0 to one year.
milliseconds bounded_timeout(milliseconds timeout);

}  // namespace muster
