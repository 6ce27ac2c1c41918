// How it works: a log is a key for each entry and one for their number.
#include "muster/store/store.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// Entries are counted from 1.
std::string log_entry_key(const std::string& log, int64_t number) {
  return cat(log, "/", number);
}

std::string log_size_key(const std::string& log) {
  return cat(log, "/size");
}

// This uses only operations that every store has: each number is given to whoever sets it first.
// The search begins at the size, which may lag behind.
int64_t Store::append(const std::string& log, const std::string& entry) {
  const auto size = log_size_key(log);
  for (int64_t number = add(size, 0) + 1;; ++number) {
    const auto key = log_entry_key(log, number);
    if (check({key}))
      continue;
    if (compare_set(key, "", entry) != entry)
      continue;
    add(size, 1);
    return number;
  }
}

// Each key is asked for alone. One that is removed after it was found counts as absent.
StoreValues Store::values(const Strings& keys) {
  StoreValues values;
  for (const auto& key : keys) {
    values.emplace_back();
    if (!check({key}))
      continue;
    try {
      values.back() = get(key, milliseconds(0));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout)
        throw;
    }
  }
  return values;
}

}  // namespace muster
