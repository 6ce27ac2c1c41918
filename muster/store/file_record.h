// The bytes of a file store: a magic, then records, each with its size and a checksum, so that one
// cut short by a dying writer is known for what it is. Called by file_store.cc; pure functions of
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

inline constexpr std::string_view kFileMagic = "muster file store 1\n";

struct FileRecord {
  enum class Kind : char {
    header = 'H',  // key: the job; value: FileHeader
    member = 'M',  // key: the rank; value: who joined as it, in words
    set = 'S',
    remove = 'D',
  };
  Kind kind = Kind::set;
  std::string key;
  std::string value;
};

// A file says this of itself in its first record, beside the job's name.
struct FileHeader {
  int world_size = 0;
  int64_t generation = 0;  // 1 for a new file, one more each time a leftover is started anew
  std::string boot_id;     // of the host, since its last start
};

std::string encode_record(const FileRecord& record);

// Takes the record at the front of `bytes`; nothing when it is not whole, or not one.
std::optional<FileRecord> take_record(std::string_view& bytes);

std::string encode_header(const FileHeader& header);
std::optional<FileHeader> decode_header(std::string_view text);

}  // namespace muster
