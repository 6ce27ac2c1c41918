// How it works: a packed file is the head of an activity file, all before the ring, and the last
// calls of the ring in their order. Unpacking puts the calls back into their places.
#include "muster/trace/activity_copy.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/hosts_folder.h"
#include "muster/trace/read_activity.h"
#include "muster/trace/steady_copy.h"

namespace muster {

namespace {

constexpr size_t kHead = offsetof(ActivityLayout, ring);
constexpr size_t kPacked = kHead + kCopiedCalls * sizeof(ActivityCall);

// The offset of the call of this number in a file.
size_t place_in_ring(uint64_t number) {
  return kHead + (number - 1) % kActivityCalls * sizeof(ActivityCall);
}

// The offset of the i-th copied call in a packed file.
size_t place_in_packed(size_t i) {
  return kHead + i * sizeof(ActivityCall);
}

// The number of the i-th copied call, the earliest first; 0 where there was none.
uint64_t copied_call(const ActivityHeader& header, size_t i) {
  const uint64_t back = kCopiedCalls - 1 - i;
  return header.calls > back ? header.calls - back : 0;
}

// The bytes have a header at least, as the callers have checked.
ActivityHeader header_of(const std::string& bytes) {
  ActivityHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

// Calls `copy` with each copied call's place in a file and in a packed file.
template <class Copy>
void for_each_copied_call(const ActivityHeader& header, const Copy& copy) {
  for (size_t i = 0; i < kCopiedCalls; ++i) {
    if (const uint64_t number = copied_call(header, i); number != 0)
      copy(place_in_ring(number), place_in_packed(i));
  }
}

std::string pack_file(const std::string& bytes) {
  std::string packed = bytes.substr(0, kHead);
  packed.resize(kPacked, '\0');
  for_each_copied_call(header_of(bytes), [&](size_t in_ring, size_t in_packed) {
    std::memcpy(&packed[in_packed], &bytes[in_ring], sizeof(ActivityCall));
  });
  return packed;
}

std::string unpack_file(const std::string& packed) {
  std::string bytes = packed.substr(0, kHead);
  bytes.resize(sizeof(ActivityLayout), '\0');
  for_each_copied_call(header_of(packed), [&](size_t in_ring, size_t in_packed) {
    std::memcpy(&bytes[in_ring], &packed[in_packed], sizeof(ActivityCall));
  });
  return bytes;
}

}  // namespace

// A file that is none, or of another version, is refused here already.
std::string pack_activity(const std::string& run_dir, int attempt, int rank) {
  const auto path = activity_path(run_dir, attempt, rank);
  const auto bytes = steady_copy(path);
  parse_activity(bytes, path);
  return pack_file(bytes);
}

// A file that is there already stays: it is the rank's own, in a folder that the hosts share.
void unpack_activity(const std::string& packed, const std::string& run_dir, int attempt, int rank) {
  const std::string name = "activity of another host";
  if (packed.size() != kPacked)
    throw invalid_argument(name, ": expected ", kPacked, " bytes, got ", packed.size());
  const auto bytes = unpack_file(packed);
  const int of_rank = parse_activity(bytes, name).rank;
  if (of_rank != rank)
    throw invalid_argument(name, ": expected that of rank ", rank, ", got ", of_rank);
  if (path_exists(activity_path(run_dir, attempt, rank)))
    return;
  std::error_code error;
  const auto folder = std::filesystem::path(hosts_folder(run_dir)) / cat(attempt);
  std::filesystem::create_directories(folder, error);
  write_file((folder / cat(rank)).string(), bytes);
}

}  // namespace muster
