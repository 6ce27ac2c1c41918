// Failures of run_probe.cc whose lines failures_test.py expects on the card: they are marked.
#include <stdexcept>

void overheat() {
  throw std::runtime_error("the reactor is too hot");  // thrown here
}

void write_nowhere() {
  static int* volatile nowhere = nullptr;
  *nowhere = 7;  // written here
}
