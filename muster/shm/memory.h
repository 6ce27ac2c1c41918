// Memory that several processes map: a memfd, which has no name that others could open and which
// goes when the last process that maps it ends. Pages exist only where somebody has reserved them,
// and nobody touches others, so that a machine without memory is an error here and not a SIGBUS
// later.
#pragma once

#include <cstddef>
#include <utility>

#include "muster/base/fd.h"

namespace muster::shm {

class SharedMemory {
 public:
  // `bytes` of address space, of which nothing exists yet. Throws: io.
  static SharedMemory make(size_t bytes);
  // Maps what another process has made and sent. Throws: io.
  static SharedMemory map(Fd fd, size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

  // The addresses of this process that all such memory has.
  static size_t mapped_bytes();

  // Whether this process has so many addresses left in one piece, and may make a file of so many
  // bytes: they may be few on a kernel with 39 bits of address, or under a limit (ulimit -v, -f).
  static bool has_room(size_t bytes);

  // Only the first `bytes` stay mapped.
  void keep_first(size_t bytes);

  // Makes these pages exist, zeroed. Throws: unavailable saying what is left where the machine or
  // the control group does not have as much.
  void reserve(size_t offset, size_t bytes);

  // Gives them back to the machine. Whole pages within the range.
  void release(size_t offset, size_t bytes);

 private:
  SharedMemory(Fd fd, std::byte* data, size_t size)
      : fd_(std::move(fd)), data_(data), size_(size) {}

  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace muster::shm
