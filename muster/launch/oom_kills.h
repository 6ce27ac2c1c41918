// Sets the kernel's kills in this control group for want of memory against ranks' SIGKILLs that
// nobody here sent. For run_local_ranks alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "muster/launch/rank_exit.h"

namespace muster {

class OomKills {
 public:
  // `count`: how many there have been in all (count_oom_kills); nothing where the kernel tells
  // none.
  explicit OomKills(std::function<std::optional<int64_t>()> count) : count_(std::move(count)) {
    forget();
  }

  // If the kernel has killed as many processes as these that were killed, their causes say so.
  void explain(RankExits& exits) const;

  // The kills until now explain no later end.
  void forget() { before_ = count_(); }

 private:
  std::function<std::optional<int64_t>()> count_;
  std::optional<int64_t> before_;
};

}  // namespace muster
