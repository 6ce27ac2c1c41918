#include "muster/store/prefix_store.h"

#include <utility>

#include "muster/base/error.h"

namespace muster {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix) + "/"), store_(std::move(store)) {
  if (!store_) throw Error(ErrorCode::invalid_argument, "prefix store: expected a store, got none");
}

void PrefixStore::set(const std::string& key, const std::string& value) {
  store_->set(full(key), value);
}

std::string PrefixStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return store_->get(full(key), timeout);
}

int64_t PrefixStore::add(const std::string& key, int64_t amount) {
  return store_->add(full(key), amount);
}

std::string PrefixStore::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  return store_->compare_set(full(key), expected, desired);
}

bool PrefixStore::check(const std::vector<std::string>& keys) {
  return store_->check(full(keys));
}

void PrefixStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  store_->wait(full(keys), timeout);
}

int64_t PrefixStore::append(const std::string& log, const std::string& entry) {
  return store_->append(full(log), entry);
}

bool PrefixStore::remove(const std::string& key) {
  return store_->remove(full(key));
}

int64_t PrefixStore::num_keys() {
  return store_->num_keys();
}

std::vector<std::string> PrefixStore::full(const std::vector<std::string>& keys) const {
  std::vector<std::string> prefixed;
  prefixed.reserve(keys.size());
  for (const auto& key : keys) prefixed.push_back(full(key));
  return prefixed;
}

}  // namespace muster
