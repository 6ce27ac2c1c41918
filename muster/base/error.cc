// How it works: an error carries a code, the message that people read, and the place in the source
// that threw it, of which only the file's last name is shown.
#include "muster/base/error.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Lines of a program or a file may have colours, and the line ends of Windows.
std::string lines_for_people(const std::string& message) {
  std::string text;
  for (const char c : without_colors(message)) {
    if (c == '\n' && text.ends_with('\r'))
      text.pop_back();
    text += c;
  }
  return printable_lines(text);
}

}  // namespace

const char* to_string(ErrorCode code) {
  static constexpr std::pair<ErrorCode, const char*> kNames[] = {
      {ErrorCode::invalid_argument, "invalid_argument"},
      {ErrorCode::failed_precondition, "failed_precondition"},
      {ErrorCode::unavailable, "unavailable"},
      {ErrorCode::timeout, "timeout"},
      {ErrorCode::peer_failed, "peer_failed"},
      {ErrorCode::backend_failed, "backend_failed"},
      {ErrorCode::io, "io"},
      {ErrorCode::internal, "internal"}};
  return lookup(kNames, code, "unknown");
}

// Messages quote paths, names and texts of files, which shall not disturb a terminal.
Error::Error(ErrorCode code, const std::string& message, std::source_location where)
    : std::runtime_error(lines_for_people(message)), code_(code), where_(where) {}

// The compiler gives the whole path, which says where muster was built.
std::string Error::where() const {
  const std::string file = where_.file_name();
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where_.line());
}

bool is_shortage(int errno_value) {
  return is_one_of(errno_value, EAGAIN, EMFILE, ENFILE, ENOMEM);
}

namespace {

// What a user can do about it; empty for an error that says enough.
const char* advice_on(int errno_value) {
  constexpr std::pair<int, const char*> kAdvice[] = {
      {EMFILE, "; raise the limit of descriptors (ulimit -n)"},
      {EFBIG, "; raise the limit of file sizes (ulimit -f)"},
      {ENFILE, "; the system has no more descriptors (sysctl fs.file-max)"}};
  return lookup(kAdvice, errno_value, "");
}

}  // namespace

// A shortage is an exception of its own, so that callers can wait for its end.
void fail_errno(const std::string& message, int errno_value, std::source_location where) {
  const std::string text = printable(message) + ": " +
                           std::generic_category().message(errno_value) + advice_on(errno_value);
  if (is_shortage(errno_value))
    throw Shortage(errno_value, text, where);
  throw Error(ErrorCode::io, text, where);
}

}  // namespace muster
