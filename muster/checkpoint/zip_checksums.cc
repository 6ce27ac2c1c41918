// A zip archive ends with a directory and a record that says where that begins. Large archives have
// a second such record of wider numbers, whose place a locator tells. Source: PKWARE's
// APPNOTE.TXT, 4.3.12 to 4.3.16.
#include "muster/checkpoint/zip_checksums.h"

#include <caffe2/serialize/file_adapter.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::string_view kEntry = "PK\x01\x02";
constexpr std::string_view kEnd = "PK\x05\x06";
constexpr std::string_view kWideEnd = "PK\x06\x06";
constexpr std::string_view kLocator = "PK\x06\x07";
constexpr size_t kEntryBytes = 46, kEndBytes = 22, kWideEndBytes = 56, kLocatorBytes = 20;
constexpr size_t kMostComment = UINT16_MAX;

// The parts of the file at its end, each looked at only as far as it goes.
class ZipDirectory {
 public:
  explicit ZipDirectory(const std::string& path) : path_(path), file_(path) {}

  std::string bytes() const {
    const size_t tail_bytes = std::min(file_.size(), kMostComment + kEndBytes + kLocatorBytes);
    const size_t tail_begin = file_.size() - tail_bytes;
    const std::string tail = read(tail_begin, tail_bytes);
    const size_t end = tail.rfind(kEnd);
    require(end != npos);
    const bool is_wide = end >= kLocatorBytes &&
                         std::string_view(tail).substr(end - kLocatorBytes).starts_with(kLocator);
    if (!is_wide)
      return read(number<uint32_t>(tail, end + 16), number<uint32_t>(tail, end + 12));
    const std::string wide = read(number<uint64_t>(tail, end - kLocatorBytes + 8), kWideEndBytes);
    require(wide.starts_with(kWideEnd));
    return read(number<uint64_t>(wide, 48), number<uint64_t>(wide, 40));
  }

  template <class Number>
  Number number(std::string_view bytes, size_t at) const {
    require(at <= bytes.size() && bytes.size() - at >= sizeof(Number));
    Number value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  }

  void require(bool is_whole) const {
    if (!is_whole)
      throw invalid_argument("torch file: expected the directory of a zip archive in '",
                             path_,
                             "', got none or a part of one; copy the file again");
  }

 private:
  std::string read(uint64_t begin, uint64_t size) const {
    require(begin <= file_.size() && size <= file_.size() - begin);
    std::string bytes(size, '\0');
    file_.read(begin, bytes.data(), size);
    return bytes;
  }

  const std::string& path_;
  caffe2::serialize::FileAdapter file_;
};

}  // namespace

ZipChecksums::ZipChecksums(const std::string& path) {
  const ZipDirectory directory(path);
  const std::string bytes = directory.bytes();
  size_t at = 0;
  while (std::string_view(bytes).substr(at).starts_with(kEntry)) {
    const size_t name = directory.number<uint16_t>(bytes, at + 28);
    const size_t others = directory.number<uint16_t>(bytes, at + 30) +
                          size_t{directory.number<uint16_t>(bytes, at + 32)};
    directory.require(bytes.size() - at >= kEntryBytes + name + others);
    const auto record = bytes.substr(at + kEntryBytes, name);
    sums_[record.substr(record.find('/') + 1)] = directory.number<uint32_t>(bytes, at + 16);
    at += kEntryBytes + name + others;
  }
}

bool ZipChecksums::fits(const std::string& record, const void* bytes, size_t size) const {
  const uint32_t sum = find_or(sums_, record);
  return sum == 0 || crc32_z(0, static_cast<const Bytef*>(bytes), size) == sum;
}

}  // namespace muster
