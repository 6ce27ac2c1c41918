// Every rank tells the hashes of its tensors. The tensors of rank 0 whose hash some rank has not
// are sent to all, and nothing else is.
#include "muster/checkpoint/training/unlike_rank0.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "muster/base/byte_reader.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/safetensors_dtype.h"
#include "muster/checkpoint/training/tensor_bytes.h"

namespace muster {

namespace {

using Hashes = std::set<uint64_t>;

// The hash is good enough against chance, and nobody here wants to deceive. It has four lanes,
// since one multiplication waits for another.
uint64_t hash_of(const void* data, size_t bytes, uint64_t seed) {
  constexpr uint64_t kPrime = 0x9E3779B185EBCA87;
  uint64_t lanes[4] = {seed, seed ^ kPrime, ~seed, seed + kPrime};
  const char* at = static_cast<const char*>(data);
  uint64_t words[4];
  const auto mix = [&] {
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kPrime;
      lanes[i] ^= lanes[i] >> 29;
    }
  };
  size_t left = bytes;
  for (; left >= sizeof(words); left -= sizeof(words), at += sizeof(words)) {
    std::memcpy(words, at, sizeof(words));
    mix();
  }
  std::memset(words, 0, sizeof(words));
  if (left > 0)
    std::memcpy(words, at, left);
  mix();
  uint64_t all = bytes;
  for (const uint64_t lane : lanes)
    all = (all ^ lane) * kPrime;
  return all ^ (all >> 32);
}

// The hash of a tensor's name, type, shape and content.
uint64_t hash_of(const std::string& name, const Tensor& tensor) {
  const Tensor here = tensor.detach().cpu().contiguous();
  const auto kind = cat(name, " ", toString(here.scalar_type()), " ", join(here.sizes(), ","));
  return hash_of(here.data_ptr(), here.nbytes(), hash_of(kind.data(), kind.size(), 0));
}

// Reads the hashes that a rank has told.
Hashes hashes_in(const std::string& bytes) {
  const auto hashes = values_in<uint64_t>(bytes);
  return {hashes.begin(), hashes.end()};
}

// Returns those hashes of rank 0's that some other rank has not.
Hashes unlike(const Strings& by_rank) {
  Hashes found;
  const Hashes first = hashes_in(by_rank[0]);
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    const Hashes other = hashes_in(by_rank[rank]);
    std::ranges::set_difference(first, other, std::inserter(found, found.end()));
  }
  return found;
}

// Returns the contents of tensors on the CPU, one after the other.
std::string bytes_of_all(const NamedTensors& tensors) {
  std::string bytes;
  for (const auto& [name, tensor] : tensors)
    bytes += bytes_as_text(tensor);
  return bytes;
}

// Reads what bytes_of_all has written.
NamedTensors tensors_of(const SafetensorsHeader& header, const std::string& bytes) {
  NamedTensors tensors;
  ByteReader reader(bytes, "rank 0's tensors");
  for (const auto& [name, entry] : header.tensors) {
    const Tensor tensor = at::empty(entry.shape, scalar_type_of(entry));
    copy_bytes(reader.take(tensor.nbytes()), tensor);
    tensors.emplace(name, tensor);
  }
  return tensors;
}

}  // namespace

// Most steps send nothing but hashes: running statistics of a model without BatchNorm are the same
// everywhere.
NamedTensors tensors_unlike_rank0(ProcessGroup& group, const NamedTensors& mine) {
  std::vector<uint64_t> hashes;
  for (const auto& [name, tensor] : mine)
    hashes.push_back(hash_of(name, tensor));
  const auto by_rank = group.all_gather_bytes(text_of_values(hashes), "kept tensors");
  const Hashes wanted = unlike(by_rank);
  if (wanted.empty())
    return {};
  NamedTensors given;
  if (group.rank() == 0) {
    size_t i = 0;
    for (const auto& [name, tensor] : mine)
      if (wanted.contains(hashes[i++]))
        given.emplace(name, tensor.detach().cpu().contiguous());
  }
  const SafetensorsHead head = make_safetensors_head(given);
  std::string json = head.json, bytes = bytes_of_all(given);
  for (std::string* text : {&json, &bytes})
    group.broadcast_bytes(*text, 0);
  if (group.rank() == 0)
    return {};
  return tensors_of(parse_safetensors_header(json, bytes.size(), "rank 0's tensors"), bytes);
}

}  // namespace muster
