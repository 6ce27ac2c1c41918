#include "muster/trace/event_copy.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/event_layout.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

std::optional<int> number_in(const fs::path& name) {
  const auto number = parse_int(name.filename().string());
  return number && *number >= 0 && *number <= INT32_MAX ? std::optional<int>(static_cast<int>(*number))
                                                        : std::nullopt;
}

// What a file has grown by and not used yet is zero. Events stay whole, and may end with zeros too.
std::string used_part(std::string bytes) {
  const size_t used = bytes.find_last_not_of('\0') + 1;
  if (used <= sizeof(EventHeader)) return bytes.substr(0, sizeof(EventHeader));
  const size_t events = (used - sizeof(EventHeader) + sizeof(TraceEvent) - 1) / sizeof(TraceEvent);
  bytes.resize(std::min(bytes.size(), sizeof(EventHeader) + events * sizeof(TraceEvent)));
  return bytes;
}

bool fits(const fs::path& file, size_t room) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return !error && size <= room;
}

}  // namespace

std::string pack_events(const std::string& run_dir, size_t first, size_t count, size_t most) {
  std::vector<nlohmann::json> files;
  size_t room = most;
  std::error_code error;
  for (fs::directory_iterator attempt(fs::path(run_dir) / "trace", error), end; !error && attempt != end;
       attempt.increment(error)) {
    const auto number = number_in(attempt->path());
    if (!number) continue;
    for (size_t rank = first; rank < first + count; ++rank) {
      const fs::path file = attempt->path() / cat(rank);
      if (!fits(file, room)) continue;
      std::string bytes = used_part(read_plain_file(file.string(), room));
      room -= bytes.size();
      files.push_back({{"attempt", *number},
                       {"rank", rank},
                       {"events", nlohmann::json::binary({bytes.begin(), bytes.end()})}});
    }
  }
  std::string packed;
  if (!files.empty()) nlohmann::json::to_cbor(files, packed);
  return packed;
}

void unpack_events(const std::string& packed, const std::string& run_dir) {
  try {
    for (const nlohmann::json& file : nlohmann::json::from_cbor(packed)) {
      const fs::path folder = fs::path(run_dir) / "trace" / cat(file.at("attempt").get<uint32_t>());
      const fs::path path = folder / cat(file.at("rank").get<uint32_t>());
      std::error_code error;
      if (fs::exists(path, error)) continue;
      fs::create_directories(folder, error);
      const auto& events = file.at("events").get_binary();
      write_file(path.string(), {events.begin(), events.end()});
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_argument, cat("expected files of events, got: ", error.what()));
  }
}

}  // namespace muster
