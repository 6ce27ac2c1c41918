// Optimizers are known by their address. Another one may have that of an optimizer that is gone
// before its Schedule, so the rates must be the owner's too.
#include "muster/train/rate_owner.h"

#include <map>
#include <mutex>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/optimizer_parameters.h"

namespace muster {

namespace {

struct RateOwners {
  std::mutex mutex;
  std::map<const Optimizer*, std::weak_ptr<const RateOwner>> owners;

  // It is never destroyed: a program may have a schedule that lives until its end.
  static RateOwners& instance() {
    static auto* const all = new RateOwners;
    return *all;
  }
};

}  // namespace

std::shared_ptr<RateOwner> own_rates(const Optimizer& optimizer, std::string kind) {
  auto& all = RateOwners::instance();
  const Lock lock(all.mutex);
  Doubles rates = rates_of_groups(optimizer);
  const std::shared_ptr<const RateOwner> owner = all.owners[&optimizer].lock();
  if (owner && owner->rates == rates) {
    throw failed_precondition(
        lower_case(kind),
        ": expected an optimizer whose rates nobody else sets, got one that has a ",
        owner->kind,
        " (learning rate now ",
        rates.empty() ? 0 : rates[0],
        "); destroy that one first and set the optimizer's rates, or join the rates by "
        "rate::sequential or rate::chained");
  }
  auto made = std::make_shared<RateOwner>(std::move(kind), std::move(rates));
  std::erase_if(all.owners, [](const auto& entry) { return entry.second.expired(); });
  all.owners[&optimizer] = made;
  return made;
}

}  // namespace muster
