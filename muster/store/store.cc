#include "muster/store/store.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

std::string log_entry_key(const std::string& log, int64_t number) {
  return cat(log, "/", number);
}

std::string log_size_key(const std::string& log) {
  return cat(log, "/size");
}

// By the operations that every store has: each number is given to whoever sets it first. The size
// is where to begin looking; it may lag behind.
int64_t Store::append(const std::string& log, const std::string& entry) {
  const std::string size = log_size_key(log);
  for (int64_t number = add(size, 0) + 1;; ++number) {
    const std::string key = log_entry_key(log, number);
    if (check({key}))
      continue;
    if (compare_set(key, "", entry) != entry)
      continue;
    add(size, 1);
    return number;
  }
}

}  // namespace muster
