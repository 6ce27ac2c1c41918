#include "tests/cuda/fake_block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "muster/base/error.h"

namespace muster::testing {

namespace {

// A view in more pieces counts with its first and its last: that refuses no right program.
constexpr int64_t kMostPieces = 4096;

struct Dim {
  int64_t stride, size;
};

// Those that matter, the densest first.
std::vector<Dim> dims_of(const at::Tensor& tensor) {
  std::vector<Dim> dims;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != 0)
      dims.push_back({tensor.stride(dim), tensor.size(dim)});
  }
  std::ranges::sort(dims, {}, &Dim::stride);
  return dims;
}

// Where `size` copies of the pieces begin, each `stride` behind the one before.
std::vector<int64_t> repeated(const std::vector<int64_t>& begins, const Dim& dim) {
  if (std::ssize(begins) * dim.size > kMostPieces)
    return {0, begins.back() + (dim.size - 1) * dim.stride};
  std::vector<int64_t> all;
  for (int64_t i = 0; i < dim.size; ++i) {
    for (const int64_t begin : begins)
      all.push_back(begin + i * dim.stride);
  }
  return all;
}

}  // namespace

// The first dimensions may be one piece of memory; the others repeat it.
std::vector<std::pair<size_t, size_t>> Block::ranges_of(const at::Tensor& tensor) const {
  int64_t piece = 1;
  std::vector<int64_t> begins{0};
  for (const Dim& dim : dims_of(tensor)) {
    if (begins.size() == 1 && dim.stride <= piece)
      piece += (dim.size - 1) * dim.stride;
    else
      begins = repeated(begins, dim);
  }
  const size_t storage = static_cast<const std::byte*>(tensor.storage().data()) - untouchable_;
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const int64_t begin : begins) {
    const size_t first = storage + (tensor.storage_offset() + begin) * tensor.itemsize();
    ranges.emplace_back(first, first + piece * tensor.itemsize());
  }
  return ranges;
}

Block::Block(size_t bytes, const c10::Stream& stream) : bytes_(bytes), streams_{stream.id()} {
  const int file = ::memfd_create("fake_gpu", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes_)) != 0)
    fail_errno("fake GPU: memfd_create", errno);
  untouchable_ = map(file, PROT_NONE);
  pages_ = map(file, PROT_READ | PROT_WRITE);
  ::close(file);
}

Block::~Block() {
  ::munmap(untouchable_, bytes_);
  ::munmap(pages_, bytes_);
}

std::byte* Block::map(int file, int protection) const {
  void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
  if (at == MAP_FAILED)
    fail_errno("fake GPU: mmap", errno);
  return static_cast<std::byte*>(at);
}

}  // namespace muster::testing
