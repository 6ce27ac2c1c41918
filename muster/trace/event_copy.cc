// How it works: a file of events is copied as it is, without the zeros that it has grown by. Its
// place, ATTEMPT/RANK, comes from another host and is checked before it becomes a path.
#include "muster/trace/event_copy.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"
#include "muster/trace/event_file.h"
#include "muster/trace/event_layout.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// The part that the file has grown by and not used yet is zero. Events stay whole, and may end with
// zeros too.
std::string used_part(std::string bytes) {
  const size_t used = bytes.find_last_not_of('\0') + 1;
  if (used <= sizeof(EventHeader))
    return bytes.substr(0, sizeof(EventHeader));
  const size_t events = (used - sizeof(EventHeader) + sizeof(TraceEvent) - 1) / sizeof(TraceEvent);
  bytes.resize(std::min(bytes.size(), sizeof(EventHeader) + events * sizeof(TraceEvent)));
  return bytes;
}

// A number as muster writes it: no sign, no zeros before it.
bool is_plain_number(const std::string& text) {
  const auto number = parse_int(text);
  return number && *number >= 0 && cat(*number) == text;
}

bool is_place(const std::string& text) {
  const Strings numbers = split(text, '/');
  return numbers.size() == 2 && all_of(numbers, is_plain_number);
}

}  // namespace

// Files lie in the attempts' folders, and nothing deeper is looked at.
Strings event_places(const std::string& run_dir) {
  Strings places;
  const fs::path trace = fs::path(run_dir) / "trace";
  std::error_code error;
  for (fs::recursive_directory_iterator entry(trace, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto place = entry->path().lexically_relative(trace).string();
    if (is_place(place))
      places.push_back(place);
    if (entry.depth() >= 1)
      entry.disable_recursion_pending();
  }
  std::ranges::sort(places);
  return places;
}

// A file grows by much at a time, so that one may be longer than `most` and its events are not.
std::string pack_events(const std::string& run_dir, const std::string& place, size_t most) {
  const auto path = cat(run_dir, "/trace/", place);
  if (fs::file_size(path) > most + kEventsOfChunk * sizeof(TraceEvent))
    return {};
  std::string events = used_part(read_plain_file(path));
  return events.size() <= most ? events : std::string();
}

// A file that is there already stays: it is the rank's own, in a folder that the hosts share.
void unpack_events(const std::string& packed,
                   const std::string& run_dir,
                   const std::string& place) {
  if (!is_place(place))
    throw invalid_argument(
        "events of another host: expected ATTEMPT/RANK, got '", printable(place), "'");
  const auto path = cat(run_dir, "/trace/", place);
  if (path_exists(path))
    return;
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  write_file(path, packed);
}

}  // namespace muster
