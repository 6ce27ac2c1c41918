// Every operation first asks whether it may go on. A wait is made of short waits, so that it asks
// again between them.
#include "muster/comm/rendezvous/interruptible_store.h"

#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr milliseconds kCheckEvery{100};

// Runs an operation of the store, whose server is in the launcher of rank 0's host: where nobody
// answers, that host has died.
template <class Operation>
auto served(const Operation& operation) {
  try {
    return operation();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable)
      throw;
    throw Error(ErrorCode::peer_failed,
                "the host of rank 0, which serves the ranks' store, is gone: ",
                error.message());
  }
}

class InterruptibleStore : public c10d::Store {
 public:
  InterruptibleStore(StorePtr store, Callback check)
      : c10d::Store(store->getTimeout()), store_(std::move(store)), check_(std::move(check)) {}

  StorePtr clone() override { return interruptible(store_->clone(), check_); }

  // The base class declares more overloads of these names (text keys and values): keep them
  // callable.
  using c10d::Store::compareSet;
  using c10d::Store::get;
  using c10d::Store::set;

  void set(const std::string& key, const StoreBytes& value) override {
    check_();
    served([&] { store_->set(key, value); });
  }
  StoreBytes compareSet(const std::string& key,
                        const StoreBytes& expected,
                        const StoreBytes& desired) override {
    check_();
    return served([&] { return store_->compareSet(key, expected, desired); });
  }
  StoreBytes get(const std::string& key) override {
    wait({key}, getTimeout());
    return served([&] { return store_->get(key); });
  }
  int64_t add(const std::string& key, int64_t value) override {
    check_();
    return served([&] { return store_->add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return served([&] { return store_->deleteKey(key); });
  }
  bool check(const Strings& keys) override {
    check_();
    return served([&] { return store_->check(keys); });
  }
  int64_t getNumKeys() override {
    return served([&] { return store_->getNumKeys(); });
  }
  void wait(const Strings& keys) override { wait(keys, getTimeout()); }
  void wait(const Strings& keys, const milliseconds& timeout) override {
    const Deadline deadline(timeout);
    for (;;) {
      check_();
      const bool is_last = deadline.left() <= kCheckEvery;
      try {
        return served([&] { store_->wait(keys, is_last ? deadline.left() : kCheckEvery); });
      } catch (const Error& error) {
        if (is_last || error.code() != ErrorCode::timeout)
          throw;
      }
    }
  }

 private:
  StorePtr store_;
  Callback check_;
};

}  // namespace

StorePtr interruptible(StorePtr store, Callback check) {
  return c10::make_intrusive<InterruptibleStore>(std::move(store), std::move(check));
}

}  // namespace muster
