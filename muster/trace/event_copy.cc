#include "muster/trace/event_copy.h"

#include <algorithm>
#include <filesystem>

#include "muster/base/fd.h"
#include "muster/trace/event_file.h"
#include "muster/trace/event_layout.h"

namespace muster {

namespace {

// What a file has grown by and not used yet is zero. Events stay whole, and may end with zeros too.
std::string used_part(std::string bytes) {
  const size_t used = bytes.find_last_not_of('\0') + 1;
  if (used <= sizeof(EventHeader)) return bytes.substr(0, sizeof(EventHeader));
  const size_t events = (used - sizeof(EventHeader) + sizeof(TraceEvent) - 1) / sizeof(TraceEvent);
  bytes.resize(std::min(bytes.size(), sizeof(EventHeader) + events * sizeof(TraceEvent)));
  return bytes;
}

}  // namespace

std::string pack_events(const std::string& run_dir, int attempt, int rank) {
  const std::string path = event_path(run_dir, attempt, rank);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  return used_part(read_plain_file(path));
}

void unpack_events(const std::string& packed, const std::string& run_dir, int attempt, int rank) {
  const std::string path = event_path(run_dir, attempt, rank);
  std::error_code error;
  if (std::filesystem::exists(path, error)) return;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  write_file(path, packed);
}

}  // namespace muster
