// How it works: the line of /proc has the command in brackets, and behind them fields with a blank
// between them. The command may hold anything, so that the last bracket counts.
#include "muster/base/process_status.h"

#include <string_view>

#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

int64_t ProcessStatus::number(size_t field) const {
  return field < fields.size() ? parse_int(fields[field]).value_or(0) : 0;
}

int64_t ProcessStatus::start_ticks() const {
  constexpr size_t kStartField = 19;
  return number(kStartField);
}

ProcessStatus process_status(pid_t pid) {
  ProcessStatus status;
  const std::string text = try_read_file(cat("/proc/", pid, "/stat")).value_or("");
  // The text is "123 (name, which may hold anything) S 1 …".
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= text.size())
    return status;
  status.command = text.substr(open + 1, close - open - 1);
  status.state = text[close + 2];
  status.fields = split(std::string_view(text).substr(close + 2), ' ');
  status.parent = static_cast<pid_t>(status.number(1));
  constexpr size_t kFlagsField = 6;
  constexpr int64_t kExiting = 0x4;  // the kernel's PF_EXITING
  status.is_exiting = (status.number(kFlagsField) & kExiting) != 0;
  return status;
}

uint64_t process_start_ticks(pid_t pid) {
  return process_status(pid).start_ticks();
}

}  // namespace muster
