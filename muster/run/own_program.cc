// A program that starts its own ranks needs the path and the arguments of itself, as the kernel has
// them.
#include "muster/run/own_program.h"

#include <errno.h>
#include <sys/prctl.h>

#include <algorithm>
#include <string_view>

namespace muster {

namespace {

Strings& arguments_at_start() {
  static Strings arguments;
  return arguments;
}

// glibc passes the arguments to a library's constructors too, which run before main() and so before
// anything can change them.
[[gnu::constructor]] void keep_arguments(int argc, char** argv) {
  arguments_at_start().assign(argv, argv + std::max(argc, 0));
}

}  // namespace

Strings own_command_line(int argc, char** argv) {
  const Strings& kept = arguments_at_start();
  if (!kept.empty())
    return kept;
  return {argv, argv + std::max(argc, 0)};
}

void take_own_name() {
  char name[16] = {};  // the kernel's size
  if (::prctl(PR_GET_NAME, name) == 0 && std::string_view(name) == "exe")
    ::prctl(PR_SET_NAME, program_invocation_short_name);
}

}  // namespace muster
