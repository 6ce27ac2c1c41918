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

constexpr auto kSchema = "muster.lease/1";
constexpr size_t kMaxText = 120;  // even when every byte is escaped as \u00xx, the note fits

// A number of the note; 0 for one that is missing or of another type.
template <class Number>
Number number_or_zero(const json& note, const char* key) {
  const json found = member_or_null(note, key);
  return found.is_number_integer() ? found.get<Number>() : 0;
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
  if (text_or_empty(document, "schema") != kSchema)
    return std::nullopt;
  return LeaseNote{.pid = number_or_zero<int>(document, "pid"),
                   .started_ticks = number_or_zero<uint64_t>(document, "started_ticks"),
                   .job = text_or_empty(document, "job"),
                   .program = text_or_empty(document, "program"),
                   .since_seconds = number_or_zero<int64_t>(document, "since_seconds"),
                   .memory_bytes = number_or_zero<uint64_t>(document, "memory_bytes")};
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
