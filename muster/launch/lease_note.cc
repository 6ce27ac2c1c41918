// A note is JSON of a fixed size, padded with zeros, so that a new one covers all of an old one. It
// is information for people only: nothing is decided by it but whether its process still runs.
#include "muster/launch/lease_note.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr const char* kSchema = "muster.lease/1";
constexpr size_t kMaxText = 120;  // even when every byte is escaped as \u00xx, the note fits

// A member of the note; `fallback` for one that is missing or of another type.
template <class T>
T member_or(const json& note, const char* key, T fallback) {
  const auto found = note.find(key);
  if (found == note.end())
    return fallback;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->template get<std::string>() : fallback;
  } else {
    return found->is_number_integer() ? found->template get<T>() : fallback;
  }
}

}  // namespace

std::string lease_note_to_bytes(const LeaseNote& note) {
  const json document = {{"schema", kSchema},
                         {"pid", note.pid},
                         {"started_ticks", note.started_ticks},
                         {"job", note.job.substr(0, kMaxText / 2)},
                         {"program", note.program.substr(0, kMaxText / 2)},
                         {"since_seconds", note.since_seconds},
                         {"memory_bytes", note.memory_bytes}};
  // Names may be any bytes, and cutting may have split a character: what is no UTF-8 is replaced.
  std::string bytes = json_text(document, -1, true);
  bytes.resize(kLeaseNoteBytes, '\0');
  return bytes;
}

// Nothing for bytes that are no note, as after a full disk.
std::optional<LeaseNote> lease_note_from_bytes(const std::string& bytes) {
  const json document = json::parse(bytes.substr(0, bytes.find('\0')), nullptr, false);
  if (!document.is_object() || member_or<std::string>(document, "schema", "") != kSchema)
    return std::nullopt;
  return LeaseNote{.pid = member_or(document, "pid", 0),
                   .started_ticks = member_or(document, "started_ticks", uint64_t{0}),
                   .job = member_or<std::string>(document, "job", ""),
                   .program = member_or<std::string>(document, "program", ""),
                   .since_seconds = member_or(document, "since_seconds", int64_t{0}),
                   .memory_bytes = member_or(document, "memory_bytes", uint64_t{0})};
}

// A note that says nothing of its process is this process's.
LeaseNote complete_lease_note(LeaseNote note) {
  if (note.pid == 0)
    note.pid = ::getpid();
  if (note.since_seconds == 0)
    note.since_seconds = std::time(nullptr);
  if (note.started_ticks == 0)
    note.started_ticks = process_start_ticks(note.pid);
  return note;
}

// The start time tells a process from a later one with the same pid.
bool lease_note_alive(const LeaseNote& note) {
  return note.pid > 0 && note.started_ticks != 0 &&
         process_start_ticks(note.pid) == note.started_ticks;
}

std::string describe(const LeaseHolder& holder) {
  std::string text;
  if (holder.units < kWholeGpu)
    text = cat(holder.units, " of ", kWholeGpu, " units: ");
  if (!holder.note)
    return text + "a job that left no note";
  const LeaseNote& note = *holder.note;
  text += note.job.empty() ? "a job (" : cat("job ", printable(note.job), " (");
  if (!note.program.empty())
    text += cat(printable(note.program), ", ");
  text += cat("pid ", note.pid);
  if (!holder.alive)
    text += ", which has ended; a process that it started still holds the lease";
  text += ")";
  const int64_t age = std::time(nullptr) - note.since_seconds;
  if (note.since_seconds > 0 && age >= 1)
    text += cat(" since ", format_duration(std::chrono::seconds(age)));
  if (note.memory_bytes > 0)
    text += cat(", ", format_bytes(note.memory_bytes), " reserved");
  return text;
}

}  // namespace muster
