// What the ranks compare about their samplers, so that none trains on another's samples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace muster {

// Everything that decides a rank's samples. Ranks whose identities differ in more than the rank
// would silently train on overlapping samples.
struct SamplerIdentity {
  int64_t num_replicas = 1;
  int64_t rank = 0;
  int64_t seed = 0;
  int64_t epoch = 0;
  int64_t length = 0;
  bool shuffle = true;
  bool drop_last = false;
  int64_t consumed = 0;
  bool pad = true;
  int64_t global_batch = 0;  // the sum of the shares; 0: no shares
  int64_t share = 0;         // this rank's
  int64_t share_begin = 0;   // the sum of the shares before it
  std::string order{};       // its name, and how batches are cut if not by numbers

  bool operator==(const SamplerIdentity&) const = default;

  // For sending to other ranks. Throws: invalid_argument for bytes that do not come from
  // to_bytes().
  std::string to_bytes() const;
  static SamplerIdentity from_bytes(const std::string& bytes);
};

using SamplerCheck = std::function<void(const SamplerIdentity&)>;

// "shuffled(1438) num_replicas=4 rank=1 seed=0 epoch=2 length=1438 shuffle=true drop_last=false
// consumed=0", and with shares also " global_batch=24 share=8 share_begin=16".
std::string to_string(const SamplerIdentity& identity);

// Checks the identities gathered from the ranks of a group, in rank order.
// Throws: invalid_argument naming the first field that differs, with both values and ranks, and
// then every rank's sampler.
void check_samplers_agree(const std::vector<SamplerIdentity>& by_rank);

}  // namespace muster
