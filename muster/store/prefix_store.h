// A view of another store in which every key carries a prefix: the job's epoch, a sub-group's name. A
// restarted job that takes a new prefix reads no key of its former life. Knows nothing of what lies
// underneath.
#pragma once

#include "muster/store/store.h"

namespace muster {

class PrefixStore final : public Store {
 public:
  // Key `k` is `<prefix>/k` in `store`. Throws: invalid_argument when there is no store.
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  int64_t append(const std::string& log, const std::string& entry) override;
  bool remove(const std::string& key) override;

  // Of the whole store underneath: a store counts its keys but does not list them.
  int64_t num_keys() override;

 private:
  std::string full(const std::string& key) const { return prefix_ + key; }
  std::vector<std::string> full(const std::vector<std::string>& keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace muster
