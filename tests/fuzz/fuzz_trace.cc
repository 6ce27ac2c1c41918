#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "muster/base/fd.h"
#include "muster/trace/event_layout.h"
#include "muster/trace/merge_trace.h"
#include "tests/device/scratch.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// Behind what shows that the file is one of events, the header and two events are the text, again
// and again.
std::string file_of_events(const std::string& text) {
  EventHeader header = {};
  std::memcpy(header.magic, kEventMagic, sizeof(kEventMagic));
  header.version = kEventVersion;
  header.event_bytes = sizeof(TraceEvent);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.resize(sizeof(header) + 2 * sizeof(TraceEvent));
  for (size_t at = offsetof(EventHeader, rank); !text.empty() && at < bytes.size();
       at += text.size())
    bytes.replace(at, std::min(text.size(), bytes.size() - at), text, 0, bytes.size() - at);
  return bytes;
}

}  // namespace

// Files that lie where ranks write theirs: what is made of them is JSON.
void fuzz_trace(const std::string& text) {
  const ScratchFolder run;
  run.write("trace/0/0", text);
  run.write("trace/0/1", file_of_events(text));
  answer_or_error([&] {
    const auto merged = merge_trace(run.path());
    if (merged && !nlohmann::json::accept(read_file(merged->path)))
      std::abort();
  });
}

}  // namespace muster
