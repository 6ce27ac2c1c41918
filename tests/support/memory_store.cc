#include "tests/support/memory_store.h"

#include "muster/base/clock.h"

namespace muster {

void MemoryStore::set(const std::string& key, const std::string& value) {
  check_limits("set", key, value);
  {
    const Lock lock(mutex_);
    table_.set(key, value);
  }
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  check_limits("get", key);
  Lock lock(mutex_);
  wait_locked(lock, "get", {key}, timeout);
  return *table_.find(key);
}

int64_t MemoryStore::add(const std::string& key, int64_t amount) {
  check_limits("add", key);
  int64_t sum = 0;
  {
    const Lock lock(mutex_);
    sum = table_.sum(key, amount);
    table_.set(key, std::to_string(sum));
  }
  changed_.notify_all();
  return sum;
}

std::string MemoryStore::compare_set(const std::string& key,
                                     const std::string& expected,
                                     const std::string& desired) {
  check_limits("compare_set", key, expected);
  check_limits("compare_set", key, desired);
  Table::Comparison comparison;
  {
    const Lock lock(mutex_);
    comparison = table_.compare(key, expected, desired);
    if (comparison.store)
      table_.set(key, desired);
  }
  if (comparison.store)
    changed_.notify_all();
  return comparison.result;
}

bool MemoryStore::check(const std::vector<std::string>& keys) {
  check_limits("check", keys);
  const Lock lock(mutex_);
  return table_.first_missing(keys) == keys.size();
}

void MemoryStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  check_limits("wait", keys);
  Lock lock(mutex_);
  wait_locked(lock, "wait", keys, timeout);
}

bool MemoryStore::remove(const std::string& key) {
  check_limits("remove", key);
  const Lock lock(mutex_);
  return table_.remove(key);
}

int64_t MemoryStore::num_keys() {
  const Lock lock(mutex_);
  return table_.size();
}

void MemoryStore::wait_locked(Lock& lock,
                              std::string_view operation,
                              const std::vector<std::string>& keys,
                              std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + bounded_timeout(timeout);
  const auto complete = [&] {
    return table_.first_missing(keys) == keys.size();
  };
  if (!changed_.wait_until(lock, until, complete)) {
    throw missing_keys_error(operation, table_.describe_missing(keys), timeout, "in-process store");
  }
}

}  // namespace muster
