#include "muster/checkpoint/files/safetensors_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLengthBytes = 8;

Fd open_safetensors(const std::string& path, uint64_t& bytes) {
  Fd fd = open_plain_file(path, "safetensors: ");
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) fail_errno(cat("safetensors: cannot open '", path, "'"), errno);
  bytes = static_cast<uint64_t>(info.st_size);
  return fd;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  uint64_t file_bytes = 0;
  fd_ = open_safetensors(path, file_bytes);
  if (file_bytes < kLengthBytes) refuse(cat("a file of only ", file_bytes, " bytes"));
  uint64_t head_bytes = 0;
  read_exactly(&head_bytes, kLengthBytes, 0);
  if (head_bytes > kMaxHeadBytes || head_bytes > file_bytes - kLengthBytes)
    refuse(cat("a header of ", head_bytes, " bytes in a file of ", file_bytes));
  head_.json.resize(head_bytes);
  read_exactly(head_.json.data(), head_bytes, kLengthBytes);
  head_.data_bytes = file_bytes - kLengthBytes - head_bytes;
}

SafetensorsHeader SafetensorsFile::header() const {
  return parse_safetensors_header(head_.json, head_.data_bytes, path_);
}

void SafetensorsFile::read(void* to, uint64_t size, uint64_t at) const {
  read_exactly(to, size, kLengthBytes + head_.json.size() + at);
}

void SafetensorsFile::read_exactly(void* to, uint64_t size, uint64_t at) const {
  auto* out = static_cast<char*>(to);
  for (uint64_t done = 0; done < size;) {
    const ssize_t n = ::pread(fd_.get(), out + done, size - done, static_cast<off_t>(at + done));
    if (n == 0) refuse("one that was cut short while it was read");
    if (n > 0) {
      done += static_cast<uint64_t>(n);
    } else if (errno != EINTR) {
      fail_errno(cat("safetensors: cannot read '", path_, "'"), errno);
    }
  }
}

void SafetensorsFile::refuse(const std::string& got) const {
  throw Error(ErrorCode::invalid_argument, cat("safetensors: expected a valid file in '", path_, "', got ",
                                               got, "; it is damaged or of another kind"));
}

}  // namespace muster
