// The policy says how many ranks it can place (its capacity). What more ranks get is said by
// --surplus: CPU slots, nothing, a share of a GPU, or an error.
#include "muster/placement/rank_counts.h"

#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// Ranks that are more than there are places for them.
struct Excess {
  int asked;
  int capacity;
  std::string why;    // ": " and the policy's own words; empty: too few GPUs
  std::string there;  // "3 GPUs large enough", "5 GPUs for ranks of 2"
};

// A policy explains itself only where there are GPUs for all of the ranks.
std::string why_too_many(const Policy& policy, const PolicyInput& input, int asked) {
  if (policy.why_too_many == nullptr || input.gpus.empty() || asked > std::ssize(input.gpus))
    return "";
  return cat(": ", policy.why_too_many(input, asked));
}

std::string text_of_places(const Policy& policy, const PolicyInput& input) {
  return plural(input.gpus.empty() ? 0 : policy.capacity(input), policy.places);
}

std::string gpus_there(const Policy& policy, const PolicyInput& input, bool by_size) {
  const int each = input.request.gpus_per_rank;
  const auto places = text_of_places(policy, input);
  return each > 1 ? cat(places, " for ranks of ", each)
                  : cat(places, by_size ? " large enough" : "");
}

[[noreturn]] void fail_with_excess(const Host& host, const Excess& excess) {
  const std::string fewer =
      excess.capacity > 0 ? cat("give --nproc-per-node ", excess.capacity, " or less, or ") : "";
  throw invalid_argument("--nproc-per-node: expected at most ",
                         plural(excess.capacity, "rank"),
                         " on host ",
                         host.name,
                         " (",
                         excess.there,
                         "), got ",
                         excess.asked,
                         excess.why,
                         "; ",
                         fewer,
                         "say what the others get: --surplus cpu, drop or share");
}

// Divides the ranks by the rule that the request gives for those that are too many.
RankCounts divide_excess(const PolicyInput& input, const Excess& excess, PlanNotes& notes) {
  const Request& request = input.request;
  const int others = excess.asked - excess.capacity;
  const auto numbers = cat(plural(excess.asked, "rank"), " asked for, ", excess.there, ": ");
  if (request.surplus == Surplus::cpu) {
    notes.add(input.host, cat(numbers, "the other ", others, " on CPU slots (--surplus cpu)"));
    if (request.numa_binding != NumaBinding::none)
      notes.warn("ranks on CPU slots are bound to no CPUs (--numa-binding goes by the GPU)");
    return {.on_gpus = excess.capacity, .on_cpu = others};
  }
  if (request.surplus == Surplus::drop) {
    notes.add(input.host, cat(numbers, others, " left out (--surplus drop)"));
    return {.on_gpus = excess.capacity};
  }
  if (request.surplus == Surplus::share && !input.gpus.empty())
    return {.on_gpus = excess.asked};
  fail_with_excess(input.host, excess);
}

}  // namespace

int rank_capacity(const Policy& policy, const PolicyInput& input) {
  return input.gpus.empty() ? 0 : policy.capacity(input) / input.request.gpus_per_rank;
}

// A policy that goes by more than the number of GPUs says itself what is missing.
std::string why_no_rank(const Policy& policy, const PolicyInput& input) {
  if (policy.why_too_many != nullptr)
    return policy.why_too_many(input, 1);
  return cat(
      text_of_places(policy, input), ", fewer than --gpus-per-rank ", input.request.gpus_per_rank);
}

RankCounts rank_counts(const Policy& policy,
                       const PolicyInput& input,
                       std::optional<int> nproc,
                       PlanNotes& notes) {
  const int capacity = rank_capacity(policy, input);
  const int asked = nproc.value_or(capacity);
  if (asked <= capacity)
    return {.on_gpus = asked};
  const auto why = why_too_many(policy, input, asked);
  const auto there = gpus_there(policy, input, !why.empty());
  return divide_excess(
      input, {.asked = asked, .capacity = capacity, .why = why, .there = there}, notes);
}

}  // namespace muster
