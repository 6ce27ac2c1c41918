// A store in etcd, for jobs that are to outlive any of their hosts: through the JSON gateway that
// every etcd of version 3 has. Keys carry the job's name and hang on a lease: a minute after the
// last of the job's processes has gone, so have they.
//
// Source: etcd 3.4 documentation, "gRPC gateway" (/v3/kv, /v3/lease).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/store/etcd_answers.h"
#include "muster/store/http.h"
#include "muster/store/store.h"

namespace muster {

struct EtcdStoreOptions {
  HttpOptions http{};
  std::string job{};             // keys are muster/<job>/<key>
  milliseconds patience{5'000};  // servers that do not answer are asked for so long
};

class EtcdStore final : public Store {
 public:
  // The largest value; etcd's own default for a whole request is half as much again.
  static constexpr size_t kMaxValueBytes = size_t{1} << 20;

  // Throws: unavailable (no etcd at that address, no libcurl).
  explicit EtcdStore(EtcdStoreOptions options);

  // All of them throw unavailable, naming the address, when etcd does not answer for as long as the
  // patience, or answers without doing what it was asked.
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired) override;
  bool check(const Strings& keys) override;
  StoreValues values(const Strings& keys) override;
  void wait(const Strings& keys, milliseconds timeout) override;
  int64_t append(const std::string& log, const std::string& entry) override;
  bool remove(const std::string& key) override;
  int64_t num_keys() override;
  size_t max_value_bytes() const override { return kMaxValueBytes; }

  // Removes all of the job's keys.
  void remove_all();

 private:
  class Refusals;

  std::string full(const std::string& key) const { return prefix_ + key; }
  EtcdFound find(const std::string& key);
  // Puts `also_key` too, if it is given, in the same step.
  bool put_if_unchanged(const std::string& key,
                        int64_t revision,
                        const std::string& value,
                        const std::string& also_key = "",
                        const std::string& also_value = "");
  Strings missing(const Strings& keys);
  std::string post(const std::string& path, const std::string& body);
  std::string place() const;  // the servers, for messages
  void begin_lease();
  void keep_lease();

  EtcdStoreOptions options_;
  Http http_;
  std::string prefix_;
  int64_t lease_ = 0;
  std::atomic<int64_t> lease_due_{0};   // when to renew it; the clock's count
  std::atomic<int64_t> lease_ends_{0};  // unless it was renewed by another process of the job
};

}  // namespace muster
