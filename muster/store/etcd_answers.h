// What etcd's JSON gateway answers, read. Anything may listen at its address, so each of these
// takes any text. For etcd_store.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "muster/store/store.h"

namespace muster {

// Bytes as the gateway takes and gives them.
std::string to_base64(std::string_view bytes);

struct EtcdFound {
  std::optional<std::string> value = {};
  int64_t revision = 0;  // 0: there is no such key
};

// All of them throw unavailable for what is not etcd's answer to that request.

// To a range of one key.
EtcdFound read_etcd_range(const std::string& answer);
// To a range of keys that are only counted.
int64_t read_etcd_count(const std::string& answer);
// To a transaction: whether it was carried out.
bool read_etcd_transaction(const std::string& answer);
// To a transaction of `count` ranges of one key.
StoreValues read_etcd_values(const std::string& answer, size_t count);
// How many keys were deleted.
int64_t read_etcd_deleted(const std::string& answer);

}  // namespace muster
