// Ranks that others wait for, until somebody has been asked about them. For the hosts' telemetry,
// which cannot always ask at once.
#pragma once

#include <map>
#include <vector>

#include "muster/base/clock.h"
#include "muster/trace/hosts_folder.h"

namespace muster {

class LateRequests {
 public:
  void add(const LateRequest& request, TimePoint now) {
    for (const int rank : request.ranks)
      since_[request.attempt][rank] = now;
  }

  bool empty() const { return since_.empty(); }

  // Those that came before: nobody waits for the answers any more.
  void forget_before(TimePoint time) {
    for (auto& [attempt, ranks] : since_)
      std::erase_if(ranks, [&](const auto& rank) { return rank.second < time; });
    std::erase_if(since_, [](const auto& attempt) { return attempt.second.empty(); });
  }

  // One for each attempt, with the ranks for which `is_asked` is true.
  template <class IsAsked>
  std::vector<LateRequest> about(const IsAsked& is_asked) const {
    std::vector<LateRequest> requests;
    for (const auto& [attempt, ranks] : since_) {
      LateRequest request{.attempt = attempt};
      for (const auto& [rank, since] : ranks) {
        if (is_asked(rank))
          request.ranks.push_back(rank);
      }
      if (!request.ranks.empty())
        requests.push_back(request);
    }
    return requests;
  }

  void remove(const LateRequest& request) {
    for (const int rank : request.ranks)
      since_[request.attempt].erase(rank);
  }

  void clear() { since_.clear(); }

 private:
  std::map<int, std::map<int, TimePoint>> since_;  // by attempt and rank
};

}  // namespace muster
