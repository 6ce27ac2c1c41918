// A task of several ranks has a launcher of its own, which may find no processes or memory to start
// the ranks with. No exit code can say so: each may be a rank's. So the launcher
// leaves a note for who has started it, which tries again later.
#pragma once

#include <string>

namespace muster {

// Of a launcher's environment: the path of the note.
inline constexpr auto kShortageNote = "MUSTER_SHORTAGE_NOTE";

// Takes the path from the environment: what this process starts leaves no note there.
void take_shortage_note();

// Leaves the note, where one is wanted and no rank runs yet.
void leave_shortage_note(const std::string& why);

// All ranks run, so what is short from here on is a failure of the job.
void forget_shortage_note();

}  // namespace muster
