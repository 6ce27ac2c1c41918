// A library whose constructor, and with it the linker's lock, waits for a thread that faults.
#include <thread>

[[gnu::constructor]] static void wait_for_a_fault() {
  std::thread([] {
    static int* volatile nowhere = nullptr;
    *nowhere = 7;
  }).join();
}
