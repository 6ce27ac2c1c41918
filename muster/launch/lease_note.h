// A lease's note as the bytes that lie in the lease's file. For lease.cc alone.
#pragma once

#include <optional>
#include <string>

#include "muster/launch/lease.h"

namespace muster {

inline constexpr size_t kLeaseNoteBytes = 1024;

// Exactly kLeaseNoteBytes: JSON, schema "muster.lease/1", then zeros. Long names are cut.
std::string lease_note_to_bytes(const LeaseNote& note);

// Nothing when the bytes hold no such note: it is only for people, so nobody stops for a damaged
// one.
std::optional<LeaseNote> lease_note_from_bytes(const std::string& bytes);

// The note with this process's id, the time and the process's own start filled in where they were
// left open.
LeaseNote complete_lease_note(LeaseNote note);

// Whether the process that wrote the note still runs (and is not another one that got its number).
bool lease_note_alive(const LeaseNote& note);

}  // namespace muster
