// Every rank hashes its tensors and gathers all ranks' hashes, in one collective. Then each finds
// the same difference by itself: the first tensor whose hashes differ, and the ranks that are odd
// there.
#include "muster/ddp/replica_check.h"

#include <ATen/Functions.h>

#include <cstring>
#include <iterator>
#include <map>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// One multiplication for each word of 8 bytes; the last word is padded with zeros.
int64_t hash_of_bytes(const char* bytes, size_t size) {
  uint64_t hash = 0x9E3779B97F4A7C15U ^ size;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93U;
    hash ^= hash >> 32;
  };
  uint64_t word = 0;
  for (; size >= sizeof word; size -= sizeof word, bytes += sizeof word) {
    std::memcpy(&word, bytes, sizeof word);
    mix(word);
  }
  word = 0;
  if (size > 0)
    std::memcpy(&word, bytes, size);
  mix(word);
  return static_cast<int64_t>(hash);
}

// Returns the ranks that differ from most (from the first, where two values are equally frequent).
Ints odd_ranks(const std::vector<std::pair<int, int64_t>>& hashes) {
  std::map<int64_t, size_t> counts;
  for (const auto& [rank, hash] : hashes)
    ++counts[hash];
  int64_t usual = hashes[0].second;
  for (const auto& [rank, hash] : hashes) {
    if (counts[hash] > counts[usual])
      usual = hash;
  }
  Ints odd;
  for (const auto& [rank, hash] : hashes) {
    if (hash != usual)
      odd.push_back(rank);
  }
  return odd;
}

}  // namespace

int64_t hash_of_bits(const Tensor& tensor) {
  Tensor plain = tensor.detach().contiguous();
  if (plain.is_cpu())
    return hash_of_bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  if (plain.nbytes() % 4 != 0)
    return hash_of_bits(plain.cpu());
  if (plain.storage_offset() * plain.element_size() % 4 != 0)
    plain = plain.clone();  // words begin at multiples of their size
  // On a device the words are summed, each times an odd number of its place: the sum alone would
  // not see where a word lies.
  const Tensor words = plain.view(-1).view(kInt).to(kLong);
  const Tensor places = at::arange(words.numel(), words.options()) * 2 + 1;
  return ((words + 0x9E3779B9) * places).sum().item<int64_t>();
}

void ReplicaCheck::count(const ModelSource& source, bool compares) {
  if (every_ <= 0 || ++steps_ % every_ != 0 || group_.size() == 1)
    return;
  const auto items = items_of(source);
  const size_t parameters = source.parameters().size();
  const Tensor all = hashes_of_all(items, compares);
  const auto value = [&](int rank, size_t column) {
    return all.const_data_ptr<int64_t>()[rank * all.size(1) + column];
  };
  for (const size_t i : indices_of(items)) {
    std::vector<std::pair<int, int64_t>> hashes;
    for (const int rank : indices_below(group_.size())) {
      if (value(rank, 0) != 0)
        hashes.emplace_back(group_.job_rank(rank), value(rank, i + 1));
    }
    if (hashes.empty())
      return;
    const auto odd = odd_ranks(hashes);
    if (!odd.empty())
      refuse(cat(i < parameters ? "parameter '" : "buffer '", items[i].name, "'"), odd);
  }
}

// The parameters, and then the buffers where they are compared too.
ModelTensors ReplicaCheck::items_of(const ModelSource& model) const {
  auto items = model.parameters();
  if (!with_buffers_)
    return items;
  auto buffers = model.buffers();
  std::ranges::move(buffers, std::back_inserter(items));
  return items;
}

// A row for each rank: whether it compares, and a hash of each item.
Tensor ReplicaCheck::hashes_of_all(const ModelTensors& items, bool compares) {
  const int64_t columns = std::ssize(items) + 1;
  const Tensor mine = at::zeros({1, columns}, kLong);
  auto* const row = mine.mutable_data_ptr<int64_t>();
  row[0] = compares ? 1 : 0;
  for (size_t i = 0; compares && i < items.size(); ++i)
    row[i + 1] = hash_of_bits(items[i].tensor);
  const Tensor all = at::empty({group_.size(), columns}, kLong);
  group_.all_gather(all, mine);
  return all;
}

void ReplicaCheck::refuse(const std::string& what, const Ints& ranks) const {
  throw failed_precondition(
      "DistributedDataParallel: expected the same bits on every rank, got others in ",
      what,
      " on ",
      ranks.size() == 1 ? "rank " : "ranks ",
      join(ranks, ", "),
      " (rank ",
      group_.job_rank(),
      ", before forward ",
      steps_,
      "; verify_every ",
      every_,
      "); change parameters alike on all ranks: one optimizer, one step() a backward");
}

}  // namespace muster
