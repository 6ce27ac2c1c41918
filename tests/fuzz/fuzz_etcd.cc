#include <cstdlib>

#include "muster/store/etcd_answers.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

// What whoever listens at etcd's address answers to each of the requests.
void fuzz_etcd(const std::string& text) {
  answer_or_error([&] { read_etcd_range(text); });
  answer_or_error([&] { read_etcd_count(text); });
  answer_or_error([&] { read_etcd_transaction(text); });
  answer_or_error([&] { read_etcd_values(text, 2); });
  answer_or_error([&] { read_etcd_deleted(text); });
  const EtcdFound found =
      read_etcd_range("{\"kvs\":[{\"value\":\"" + to_base64(text) + "\",\"mod_revision\":\"7\"}]}");
  if (found.value != text || found.revision != 7)
    std::abort();
}

}  // namespace muster
