// An event file is a list of TFRecords, and each record is a message in protobuf. Only the few
// fields that TensorBoard needs are written, by hand, so that neither library is needed.
#include "muster/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/host_identity.h"
#include "muster/base/strings.h"
#include "muster/base/wall_time.h"

namespace muster {

namespace {

// Protobuf's wire types, which stand in the low three bits of a field's key.
enum WireType { kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5 };

// Seven bits a byte, the lowest first; the highest bit says that more follow.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// A key is the field's number and its wire type.
void put_key(std::string& out, int field, WireType type) {
  put_varint(out, field << 3 | type);
}

static_assert(std::endian::native == std::endian::little, "Protobuf, TFRecord are little-endian");

template <class Number>
void put_raw(std::string& out, Number value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Texts and nested messages have the same form.
void put_bytes(std::string& out, int field, const std::string& bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// The checksums of all bytes, so that a text's is computed byte by byte.
std::array<uint32_t, 256> make_crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      const bool is_odd = (crc & 1) != 0;
      crc >>= 1;
      if (is_odd)
        crc ^= 0x82f63b78U;
    }
    table[i] = crc;
  }
  return table;
}

// TFRecord masks its checksums, so that the checksum of data that contains checksums is not a
// simple number.
uint32_t masked_crc32c(const std::string& bytes) {
  static const auto table = make_crc32c_table();
  uint32_t crc = ~0U;
  for (const uint8_t byte : bytes)
    crc = table[(crc ^ byte) & 0xff] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

// Begins a message Event with the fields that all have: 1 wall_time, which is shown, and 2 step.
std::string begin_event(int64_t step) {
  std::string event;
  put_key(event, 1, kEightBytes);
  put_raw(event, seconds_since_1970());
  put_key(event, 2, kVarint);
  put_varint(event, step);
  return event;
}

constexpr std::string_view kEventFiles = "events.out.tfevents.";

// TensorBoard reads a folder's files in the order of their names, so a new one's time is later than
// that of the others, also where the clock was set back since.
int64_t time_for_name(const std::string& folder) {
  int64_t time = std::time(nullptr);
  std::error_code is_none;
  for (std::filesystem::directory_iterator entry(folder, is_none), end; !is_none && entry != end;
       entry.increment(is_none)) {
    const auto name = entry->path().filename().string();
    if (!name.starts_with(kEventFiles))
      continue;
    const Strings words = split(name.substr(kEventFiles.size()), '.');
    const int64_t theirs = parse_int(words[0]).value_or(0);
    if (theirs < INT64_MAX)
      time = std::max(time, theirs + 1);
  }
  return time;
}

// TensorBoard's own writers name their files like this. Several files of one process have different
// numbers.
std::string event_file_name(const std::string& folder) {
  static std::atomic<int> files = 0;
  return cat(
      kEventFiles, time_for_name(folder), ".", own_host_name(), ".", ::getpid(), ".", files++);
}

// A TFRecord: the length, its checksum, the event, its checksum.
std::string record_of(const std::string& event) {
  const uint64_t size = event.size();
  std::string length;
  put_raw(length, size);
  std::string record = length;
  put_raw(record, masked_crc32c(length));
  record += event;
  put_raw(record, masked_crc32c(event));
  return record;
}

}  // namespace

// The head is written with the first event, so that a full disk does not fail the start.
EventFile::EventFile(const std::string& folder) : path_(folder + "/" + event_file_name(folder)) {
  file_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (!file_.valid())
    fail_errno(cat("tensorboard: cannot make '", path_, "'"), errno);
  std::string event = begin_event(0);
  put_bytes(event, 3, "brain.Event:2");  // file_version, without which readers stop
  unwritten_ = record_of(event);
}

void EventFile::write(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [name, number] : values) {
    std::string value;
    put_bytes(value, 1, name);      // tag
    put_key(value, 2, kFourBytes);  // simple_value
    put_raw(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = begin_event(step);
  put_bytes(event, 5, summary);
  write_event(event);
}

// TensorBoard hides the events that are later than a session's start.
void EventFile::continue_after(int64_t step) {
  std::string log;
  put_key(log, 1, kVarint);  // status
  put_varint(log, 1);        // START: what is later than this step, a reader drops
  std::string event = begin_event(step + 1);
  put_bytes(event, 7, log);  // session_log
  write_event(event);
}

// The file's head comes first, if a full disk has kept it from being written.
void EventFile::write_event(const std::string& event) {
  append_whole(file_.get(), unwritten_ + record_of(event), path_);
  unwritten_.clear();
}

}  // namespace muster
