// c10d's stores have bytes for values and muster's have text; everything else is forwarded.
#include "muster/comm/rendezvous/store_adapter.h"

#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/strings.h"

namespace muster {

namespace {

StoreBytes to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string bytes_to_text(const StoreBytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

class StoreAdapter : public c10d::Store {
 public:
  StoreAdapter(std::shared_ptr<muster::Store> store, milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  StorePtr clone() override { return adapt_store(store_, getTimeout()); }

  // The base class declares more overloads of these names (text keys and values): keep them
  // callable.
  using c10d::Store::compareSet;
  using c10d::Store::get;
  using c10d::Store::set;

  void set(const std::string& key, const StoreBytes& value) override {
    store_->set(key, bytes_to_text(value));
  }
  StoreBytes compareSet(const std::string& key,
                        const StoreBytes& expected,
                        const StoreBytes& desired) override {
    return to_bytes(store_->compare_set(key, bytes_to_text(expected), bytes_to_text(desired)));
  }
  StoreBytes get(const std::string& key) override {
    return to_bytes(store_->get(key, getTimeout()));
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->remove(key); }
  bool check(const Strings& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->num_keys(); }
  void wait(const Strings& keys) override { store_->wait(keys, getTimeout()); }
  void wait(const Strings& keys, const milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }

 private:
  std::shared_ptr<muster::Store> store_;
};

}  // namespace

StorePtr adapt_store(std::shared_ptr<Store> store, milliseconds timeout) {
  return c10::make_intrusive<StoreAdapter>(std::move(store), timeout);
}

}  // namespace muster
