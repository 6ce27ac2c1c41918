#include "muster/trace/activity_copy.h"

#include <cstring>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

constexpr size_t kHead = offsetof(ActivityLayout, ring);
constexpr size_t kPacked = kHead + kCopiedCalls * sizeof(ActivityCall);

// Where the call of this number lies in a file.
size_t place_in_ring(uint64_t number) {
  return kHead + (number - 1) % kActivityCalls * sizeof(ActivityCall);
}

// The numbers of the last calls, the earliest first; 0 where there was none.
uint64_t copied_call(const ActivityHeader& header, size_t i) {
  const uint64_t back = kCopiedCalls - 1 - i;
  return header.calls > back ? header.calls - back : 0;
}

ActivityHeader header_of(const std::string& bytes) {
  ActivityHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

std::string pack_file(const std::string& bytes) {
  const ActivityHeader header = header_of(bytes);
  std::string packed = bytes.substr(0, kHead);
  packed.resize(kPacked, '\0');
  for (size_t i = 0; i < kCopiedCalls; ++i) {
    const uint64_t number = copied_call(header, i);
    if (number == 0) continue;
    std::memcpy(&packed[kHead + i * sizeof(ActivityCall)], &bytes[place_in_ring(number)],
                sizeof(ActivityCall));
  }
  return packed;
}

std::string unpack_file(const std::string& packed) {
  const ActivityHeader header = header_of(packed);
  std::string bytes = packed.substr(0, kHead);
  bytes.resize(sizeof(ActivityLayout), '\0');
  for (size_t i = 0; i < kCopiedCalls; ++i) {
    const uint64_t number = copied_call(header, i);
    if (number == 0) continue;
    std::memcpy(&bytes[place_in_ring(number)], &packed[kHead + i * sizeof(ActivityCall)],
                sizeof(ActivityCall));
  }
  return bytes;
}

}  // namespace

std::string pack_activity(const std::string& run_dir, int attempt, size_t first, size_t count) {
  std::string packed;
  for (const ActivityFile& file : activity_files(run_dir, attempt)) {
    const auto rank = static_cast<size_t>(file.rank);
    if (rank < first || rank >= first + count) continue;
    try {
      const std::string bytes = read_plain_file(file.path, sizeof(ActivityLayout));
      parse_activity(bytes, file.path);
      packed += pack_file(bytes);
    } catch (const Error&) {
      continue;  // it is somebody else's
    }
  }
  return packed;
}

void unpack_activity(const std::string& packed, const std::string& run_dir) {
  if (packed.size() % kPacked != 0)
    throw Error(ErrorCode::invalid_argument, cat("activity of another host: expected a multiple of ", kPacked,
                                                 " bytes, got ", packed.size()));
  for (size_t at = 0; at < packed.size(); at += kPacked) {
    const std::string bytes = unpack_file(packed.substr(at, kPacked));
    const ActivityView view = parse_activity(bytes, "activity of another host");
    const auto file = std::filesystem::path("activity") / cat(view.attempt) / cat(view.rank);
    std::error_code error;
    if (std::filesystem::exists(run_dir / file, error)) continue;
    const auto copy = std::filesystem::path(run_dir) / "hosts" / file;
    std::filesystem::create_directories(copy.parent_path(), error);
    write_file(copy.string(), bytes);
  }
}

}  // namespace muster
