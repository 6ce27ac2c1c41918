// A task that does nothing, whatever its arguments, so that what is measured is the runner and the
// kernel. It comes without a C library's start: on a virtual machine that asks the processor, by
// instructions that trap, for longer than a process takes from its beginning to its end.
#include <unistd.h>

extern "C" [[noreturn]] void _start() {
  _exit(0);
}
