// Ranks that say how much memory they need (Request::rank_memory_bytes) on GPUs that have it free:
// best fit decreasing, so that the rank that needs most takes the smallest GPU that holds it, then
// the next. With one rank a GPU this finds a way whenever there is one. Only where that is
// impossible and --surplus share allows it do ranks share: first as evenly as they can, else packed
// as tightly as they can.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/policy/rank_memory.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

enum class Sharing { no, even, tight };

struct Fit {
  Indices gpu_of_rank;           // places in PolicyInput::gpus
  std::optional<int> too_big{};  // the first local rank that found no place, if any
};

// Gives ranks to GPUs one after the other, and keeps what is free on each.
class Fitting {
 public:
  Fitting(const PolicyInput& input, Sharing sharing)
      : input_(input), sharing_(sharing), num_ranks_(input.gpus.size(), 0) {
    free_ = mapped(input.gpus,
                   [&](const UsableGpu& gpu) { return free_memory_bytes(input.host, gpu); });
  }

  Fit fit(int num_ranks) {
    Ints ranks = numbers_below(num_ranks);
    std::ranges::stable_sort(ranks, std::greater(), [&](int rank) { return need(rank); });
    Fit result{.gpu_of_rank = Indices(ranks.size())};
    for (const int rank : ranks) {
      const auto gpu = best_for(need(rank));
      if (!gpu) {
        result.too_big = rank;
        return result;
      }
      free_[*gpu] -= need(rank);
      ++num_ranks_[*gpu];
      result.gpu_of_rank[rank] = *gpu;
    }
    return result;
  }

 private:
  uint64_t need(int rank) const { return rank_memory_need(input_.request, rank); }

  // Returns the first by order() of the GPUs with enough room, or nothing.
  std::optional<size_t> best_for(uint64_t bytes) const {
    std::optional<size_t> best;
    for (const size_t i : indices_of(free_)) {
      const bool is_taken = sharing_ == Sharing::no && num_ranks_[i] > 0;
      if (free_[i] < bytes || is_taken)
        continue;
      if (!best || order(i) < order(*best))
        best = i;
    }
    return best;
  }

  // GPUs with the least room come first; of an even sharing, those with the fewest ranks.
  std::pair<int, uint64_t> order(size_t gpu) const {
    return {sharing_ == Sharing::even ? num_ranks_[gpu] : 0, free_[gpu]};
  }

  const PolicyInput& input_;
  const Sharing sharing_;
  std::vector<uint64_t> free_;
  Ints num_ranks_;
};

// Needs differ from rank to rank, so the number is found by trying.
int memory_capacity(const PolicyInput& input) {
  if (input.request.rank_memory_bytes.empty()) {
    throw invalid_argument(
        "--policy memory: expected how much free memory a rank needs, got nothing; give "
        "--rank-memory 20GiB");
  }
  int num_ranks = one_rank_per_gpu(input);
  while (num_ranks > 0 && Fitting(input, Sharing::no).fit(num_ranks).too_big)
    --num_ranks;
  return num_ranks;
}

// The free memory of the GPUs tells the user what would fit.
std::string why_too_many(const PolicyInput& input, int num_ranks) {
  constexpr size_t kMaxNamed = 16;
  const int too_big = Fitting(input, Sharing::no).fit(num_ranks).too_big.value();
  const uint64_t need = rank_memory_need(input.request, too_big);
  const auto free = mapped(input.gpus | std::views::take(kMaxNamed), [&](const UsableGpu& gpu) {
    const uint64_t bytes = free_memory_bytes(input.host, gpu);
    return cat(
        label_of(input.host, gpu),
        " ",
        knows_memory(input.host, gpu) ? format_compared_bytes({bytes, need})[0] : "not known");
  });
  return cat("local rank ",
             too_big,
             " needs ",
             format_bytes(need),
             " and gets no GPU of its own; free are ",
             join(free, ", "),
             input.gpus.size() > kMaxNamed ? ", …" : "");
}

// A GPU that has not told its memory gets no rank that says how much it needs.
const char* next_step(const PolicyInput& input) {
  const bool any_known =
      any_of(input.gpus, [&](const UsableGpu& gpu) { return knows_memory(input.host, gpu); });
  return any_known ? "start fewer ranks there"
                   : "no GPU there tells its memory: leave --rank-memory out, or plan for a file "
                     "(--inventory) that says it";
}

// Tries all ways of placing the ranks that the request allows, the most generous first.
Fit fit_somehow(const PolicyInput& input, int num_ranks) {
  Fit fit = Fitting(input, Sharing::no).fit(num_ranks);
  if (!fit.too_big)
    return fit;
  if (input.request.surplus == Surplus::share) {
    for (const auto sharing : {Sharing::even, Sharing::tight}) {
      Fit shared = Fitting(input, sharing).fit(num_ranks);
      if (!shared.too_big)
        return shared;
      fit.too_big = shared.too_big;
    }
  }
  throw invalid_argument("--rank-memory: expected room for ",
                         plural(num_ranks, "rank"),
                         " on host ",
                         input.host.name,
                         ", got too little memory: local rank ",
                         *fit.too_big,
                         " needs ",
                         format_bytes(rank_memory_need(input.request, *fit.too_big)),
                         " and no GPU has that free; ",
                         next_step(input));
}

PolicyChoices choose_memory(const PolicyInput& input, int num_ranks) {
  const Fit fit = fit_somehow(input, num_ranks);
  PolicyChoices choices;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const UsableGpu& gpu = input.gpus[fit.gpu_of_rank[rank]];
    const auto need = format_bytes(rank_memory_need(input.request, rank));
    const auto free = free_memory_text(input.host, gpu);
    choices.push_back({gpu, cat("memory: needs ", need, ", ", free, " free")});
  }
  return choices;
}

}  // namespace

Policy memory_policy() {
  return {"memory",
          "ranks with --rank-memory needs on the GPUs that just hold them",
          memory_capacity,
          choose_memory,
          why_too_many};
}

}  // namespace muster
