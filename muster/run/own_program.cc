#include "muster/run/own_program.h"

#include <errno.h>
#include <sys/prctl.h>

#include <algorithm>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

std::vector<std::string> own_command_line(int argc, char** argv) {
  std::vector<std::string> arguments;
  try {
    arguments = split(read_file("/proc/self/cmdline"), '\0');
    arguments.pop_back();  // after the last one's end
  } catch (const Error&) {
    arguments.clear();  // no /proc
  }
  const bool known = !arguments.empty() && !arguments[0].empty();
  return known ? arguments : std::vector<std::string>(argv, argv + std::max(argc, 0));
}

void take_own_name() {
  char name[16] = {};  // the kernel's size
  if (::prctl(PR_GET_NAME, name) == 0 && std::string_view(name) == "exe")
    ::prctl(PR_SET_NAME, program_invocation_short_name);
}

}  // namespace muster
