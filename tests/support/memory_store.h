// A store inside one process, for tests of what every store does.
#pragma once

#include <condition_variable>
#include <mutex>

#include "muster/store/store.h"
#include "muster/store/table.h"

namespace muster {

class MemoryStore : public Store {
 public:
  explicit MemoryStore(size_t max_value_bytes = kMaxValueBytes)
      : max_value_bytes_(max_value_bytes) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool remove(const std::string& key) override;
  int64_t num_keys() override;
  size_t max_value_bytes() const override { return max_value_bytes_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  void wait_locked(Lock& lock,
                   std::string_view operation,
                   const std::vector<std::string>& keys,
                   std::chrono::milliseconds timeout);

  const size_t max_value_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Table table_;
};

}  // namespace muster
