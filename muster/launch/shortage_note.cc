// The note is written by whoever catches the shortage last, when all that the launcher had open is
// closed: the file needs a descriptor too. Where it cannot be written the launcher has failed.
#include "muster/launch/shortage_note.h"

#include <stdlib.h>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"

namespace muster {

namespace {

// Empty: no note is wanted.
std::string& note_path() {
  static std::string path;
  return path;
}

}  // namespace

void take_shortage_note() {
  note_path() = get_env(kShortageNote).value_or("");
  ::unsetenv(kShortageNote);
}

void leave_shortage_note(const std::string& why) {
  if (note_path().empty())
    return;
  try {
    write_file(note_path(), why);
  } catch (const Error&) {
    return;
  }
}

void forget_shortage_note() {
  note_path().clear();
}

}  // namespace muster
