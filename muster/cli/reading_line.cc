// The line is drawn over itself, and not more often than people can read. What is read quickly
// shows none at all.
#include "muster/cli/reading_line.h"

#include <unistd.h>

#include "muster/base/patient_write.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr milliseconds kBetweenLines{250};
constexpr auto kEmptyLine = "\r\033[K";

}  // namespace

ReadingLine::ReadingLine()
    : terminal_(::isatty(STDERR_FILENO) == 1), next_(Clock::now() + kBetweenLines) {}

// The line is cleared, so that nothing of it stays above the result.
ReadingLine::~ReadingLine() {
  if (shown_)
    write_within(STDERR_FILENO, kEmptyLine, kReaderPatience);
}

// The end of a long path tells more than its beginning.
void ReadingLine::add(const std::string& path, size_t bytes) {
  bytes_ += bytes;
  if (!terminal_ || Clock::now() < next_)
    return;
  next_ = Clock::now() + kBetweenLines;
  shown_ = true;
  const std::string name = path.size() <= 60 ? path : path.substr(path.size() - 60);
  write_within(STDERR_FILENO,
               cat(kEmptyLine, format_bytes(bytes_), " read: ", shown_text(name)),
               kReaderPatience);
}

}  // namespace muster
