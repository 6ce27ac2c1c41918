// What the ranks tell each other about their samplers, as bytes and as text. An identity travels as
// twelve numbers and the order's name. The check compares them field by field on every rank alike,
// so all ranks refuse together, and each message shows all samplers.
#include "muster/data/sampler_identity.h"

#include <array>
#include <cstring>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr size_t kSamplerNumbers = 12;
// The numbers from this field on speak of shares.
constexpr size_t kFirstOfShares = 9;
using SamplerNumbers = std::array<int64_t, kSamplerNumbers>;

// A number of the identity, as messages show it.
struct SamplerField {
  const char* name;
  bool is_flag = false;
  bool is_hidden = false;  // shown only where it is not as usual
  bool is_own = false;     // differs by rank
};

constexpr std::array<SamplerField, kSamplerNumbers> kFields = {{
    {.name = "num_replicas"},
    {.name = "rank", .is_own = true},
    {.name = "seed"},
    {.name = "epoch"},
    {.name = "length"},
    {.name = "shuffle", .is_flag = true},
    {.name = "drop_last", .is_flag = true},
    {.name = "consumed"},
    {.name = "pad", .is_flag = true, .is_hidden = true},
    {.name = "global_batch"},
    {.name = "share", .is_own = true},
    {.name = "share_begin", .is_own = true},
}};

// The numbers in the order of kFields, which is also that of the bytes that ranks exchange.
SamplerNumbers sampler_numbers(const SamplerIdentity& of) {
  return {of.num_replicas,
          of.rank,
          of.seed,
          of.epoch,
          of.length,
          of.shuffle,
          of.drop_last,
          of.consumed,
          of.pad,
          of.global_batch,
          of.share,
          of.share_begin};
}

// `with_own` shows also the numbers that differ by rank. Shares appear only where there are some.
std::string sampler_text(const SamplerIdentity& identity, bool with_own) {
  const SamplerNumbers numbers = sampler_numbers(identity);
  Strings parts;
  if (!identity.order.empty())
    parts.push_back(identity.order);
  const size_t shown = identity.global_batch > 0 ? numbers.size() : kFirstOfShares;
  for (const size_t i : indices_below(shown)) {
    const SamplerField& field = kFields[i];
    if (field.is_hidden || (field.is_own && !with_own))
      continue;
    const std::string value = field.is_flag ? cat(numbers[i] != 0) : cat(numbers[i]);
    parts.push_back(cat(field.name, "=", value));
  }
  if (!identity.pad)
    parts.push_back("pad=false");
  return join(parts, " ");
}

// The table has a line for each sampler that differs in more than the rank, with the ranks that
// have it.
std::string sampler_table(const std::vector<SamplerIdentity>& by_rank) {
  std::vector<std::pair<std::string, Indices>> lines;
  for (const size_t rank : indices_of(by_rank)) {
    const bool is_own =
        std::cmp_not_equal(by_rank[rank].rank, rank) || by_rank[rank].global_batch > 0;
    std::string text = sampler_text(by_rank[rank], is_own);
    auto* line = element_with(lines, text, &std::pair<std::string, Indices>::first);
    if (line == nullptr)
      line = &lines.emplace_back(std::move(text), Indices());
    line->second.push_back(rank);
  }
  std::string table;
  for (const auto& [text, ranks] : lines)
    table += cat("\n  ", ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "), ": ", text);
  return table;
}

// Each message ends with all samplers, since the one that differs is not always the wrong one.
template <class... Parts>
[[noreturn]] void refuse_samplers(const std::vector<SamplerIdentity>& by_rank,
                                  const Parts&... parts) {
  throw invalid_argument("sampler: expected ", parts..., sampler_table(by_rank));
}

// Throws for the first field in which the rank differs from rank 0.
void check_sampler_fields(const std::vector<SamplerIdentity>& by_rank, size_t rank) {
  const SamplerNumbers first = sampler_numbers(by_rank[0]), mine = sampler_numbers(by_rank[rank]);
  constexpr auto kNext = "; give every rank's sampler the same arguments and the same set_epoch";
  for (const size_t field : indices_of(mine)) {
    if (kFields[field].is_own || mine[field] == first[field])
      continue;
    refuse_samplers(by_rank,
                    "the same ",
                    kFields[field].name,
                    " on every rank, got ",
                    first[field],
                    " on rank 0 and ",
                    mine[field],
                    " on rank ",
                    rank,
                    kNext);
  }
  if (by_rank[rank].order != by_rank[0].order) {
    refuse_samplers(by_rank,
                    "the same order on every rank, got ",
                    by_rank[0].order,
                    " on rank 0 and ",
                    by_rank[rank].order,
                    " on rank ",
                    rank,
                    kNext);
  }
}

}  // namespace

// The numbers travel in this machine's byte order, which all ranks are taken to have.
std::string SamplerIdentity::to_bytes() const {
  const SamplerNumbers numbers = sampler_numbers(*this);
  return std::string(reinterpret_cast<const char*>(numbers.data()), sizeof(numbers)) + order;
}

// The order's name is all that follows the numbers, so no text is too long.
SamplerIdentity SamplerIdentity::from_bytes(const std::string& bytes) {
  SamplerNumbers of{};
  if (bytes.size() < sizeof(of)) {
    throw invalid_argument(
        "sampler: expected an identity of at least ", sizeof(of), " bytes, got ", bytes.size());
  }
  std::memcpy(of.data(), bytes.data(), sizeof(of));
  return {of[0],
          of[1],
          of[2],
          of[3],
          of[4],
          of[5] != 0,
          of[6] != 0,
          of[7],
          of[8] != 0,
          of[9],
          of[10],
          of[11],
          bytes.substr(sizeof(of))};
}

std::string to_string(const SamplerIdentity& identity) {
  return sampler_text(identity, true);
}

void check_samplers_agree(const std::vector<SamplerIdentity>& by_rank) {
  if (by_rank.empty())
    return;
  int64_t taken = 0;  // of the global batch, by the ranks before
  for (const size_t rank : indices_of(by_rank)) {
    check_sampler_fields(by_rank, rank);
    if (std::cmp_not_equal(by_rank[rank].rank, rank)) {
      refuse_samplers(by_rank,
                      "rank=",
                      rank,
                      " in the sampler of rank ",
                      rank,
                      ", got rank=",
                      by_rank[rank].rank,
                      "; two ranks would train on the same samples: pass the rank");
    }
    if (by_rank[rank].share_begin != taken) {
      refuse_samplers(by_rank,
                      "the same shares on every rank, got rank ",
                      rank,
                      "'s to begin at ",
                      by_rank[rank].share_begin,
                      " of the global batch, where those before it end at ",
                      taken,
                      "; give every rank the same list");
    }
    taken += by_rank[rank].share;
  }
  if (by_rank[0].num_replicas != std::ssize(by_rank)) {
    refuse_samplers(by_rank,
                    "num_replicas=",
                    by_rank.size(),
                    ", one for each rank, got ",
                    by_rank[0].num_replicas,
                    "; pass the group's size");
  }
  // Both are 0 without shares.
  if (taken != by_rank[0].global_batch) {
    refuse_samplers(by_rank,
                    "shares that sum to the global batch of ",
                    by_rank[0].global_batch,
                    ", got ",
                    taken,
                    " over all ranks; give every rank the same list");
  }
}

}  // namespace muster
