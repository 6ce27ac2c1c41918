// The storages are kept alive, so that no other memory gets the address of one.
#include "muster/checkpoint/training/swapped_weights.h"

#include <c10/core/Storage.h>

#include <map>
#include <mutex>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/lock.h"

namespace muster {

namespace {

struct SwappedStorages {
  std::mutex mutex;
  std::map<const void*, std::vector<c10::Storage>> by_owner;

  // It is never destroyed: a program may have a swap that lives until its end.
  static SwappedStorages& instance() {
    static auto* const swapped = new SwappedStorages;
    return *swapped;
  }
};

}  // namespace

void note_swapped(const void* owner, const Tensors& weights) {
  auto& swapped = SwappedStorages::instance();
  const Lock lock(swapped.mutex);
  std::vector<c10::Storage>& storages = swapped.by_owner[owner];
  for (const Tensor& weight : weights)
    storages.push_back(weight.storage());
}

void forget_swapped(const void* owner) {
  auto& swapped = SwappedStorages::instance();
  const Lock lock(swapped.mutex);
  swapped.by_owner.erase(owner);
}

bool is_swapped(const Tensor& tensor) {
  if (!tensor.has_storage())
    return false;
  auto& swapped = SwappedStorages::instance();
  const Lock lock(swapped.mutex);
  return any_of(swapped.by_owner, [&](const auto& owned) {
    return any_of(owned.second, [&](const c10::Storage& storage) {
      return storage.is_alias_of(tensor.storage());
    });
  });
}

}  // namespace muster
