// A block of a fake GPU's memory, and where the values of a tensor lie in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "tests/cuda/fake_uses.h"

namespace muster::testing {

// Two views of the same pages, of which LibTorch is given the one that nobody may touch.
class Block {
 public:
  // For the stream. Throws: Error where the host has no memory for it.
  Block(size_t bytes, const c10::Stream& stream);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  std::byte* address() const { return untouchable_; }
  size_t bytes() const { return bytes_; }
  bool has(const std::byte* at) const { return at >= untouchable_ && at < untouchable_ + bytes_; }
  std::byte* pages() const { return pages_; }
  std::set<c10::StreamId>& streams() { return streams_; }  // that may use it
  Uses& uses() { return uses_; }

  // The bytes of a tensor's values, from the block's first: one range for each piece of memory
  // without a gap.
  std::vector<std::pair<size_t, size_t>> ranges_of(const at::Tensor& tensor) const;

 private:
  std::byte* map(int file, int protection) const;

  const size_t bytes_;
  std::set<c10::StreamId> streams_;
  Uses uses_;
  std::byte* untouchable_ = nullptr;
  std::byte* pages_ = nullptr;
};

}  // namespace muster::testing
