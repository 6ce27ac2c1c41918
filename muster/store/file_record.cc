// How it works: a record is the size of its body, a checksum of it, and the body: a letter for the
// kind, the size of the key, the key and the value. A record that is not whole, or whose checksum
// does not fit, ends the file for its readers.
#include "muster/store/file_record.h"

#include <cstdint>

#include "muster/base/fnv.h"
#include "muster/base/strings.h"
#include "muster/store/bytes.h"

namespace muster {

namespace {

constexpr size_t kPrefixBytes = 4 + 8;  // size of the body, its checksum
constexpr size_t kBodyStart = 1 + 4;    // kind, size of the key

// FNV-1a tells a torn record, which is all it is for.
uint64_t checksum(std::string_view bytes) {
  return fnv1a(bytes);
}

}  // namespace

// The record is made whole before it is written, so that one write does.
std::string encode_record(const FileRecord& record) {
  std::string body;
  body += static_cast<char>(record.kind);
  put_number(body, record.key.size(), 4);
  body += record.key;
  body += record.value;
  std::string bytes;
  bytes.reserve(kPrefixBytes + body.size());
  put_number(bytes, body.size(), 4);
  put_number(bytes, checksum(body), 8);
  return bytes + body;
}

// All sizes are checked before they are used, since a dying writer may have left anything.
std::optional<FileRecord> take_record(std::string_view& bytes) {
  if (bytes.size() < kPrefixBytes)
    return std::nullopt;
  const uint64_t size = read_number(bytes, 4);
  if (size < kBodyStart || size > bytes.size() - kPrefixBytes)
    return std::nullopt;
  const std::string_view body = bytes.substr(kPrefixBytes, size);
  if (checksum(body) != read_number(bytes.substr(4), 8))
    return std::nullopt;
  const uint64_t key_size = read_number(body.substr(1), 4);
  if (key_size > size - kBodyStart)
    return std::nullopt;
  FileRecord record;
  record.kind = static_cast<FileRecord::Kind>(body[0]);
  record.key = body.substr(kBodyStart, key_size);
  record.value = body.substr(kBodyStart + key_size);
  bytes.remove_prefix(kPrefixBytes + size);
  return record;
}

// The boot's id has no blanks.
std::string encode_header(const FileHeader& header) {
  return cat(header.world_size, " ", header.generation, " ", header.boot_id);
}

// Another text than encode_header writes is no header.
std::optional<FileHeader> decode_header(std::string_view text) {
  const auto parts = split(text, ' ');
  if (parts.size() != 3)
    return std::nullopt;
  const auto world_size = parse_count(parts[0]);
  const auto generation = parse_int(parts[1]);
  if (!world_size || *world_size < 1 || !generation)
    return std::nullopt;
  return FileHeader{.world_size = *world_size, .generation = *generation, .boot_id = parts[2]};
}

}  // namespace muster
