#include <cstdlib>
#include <cstring>

#include "muster/base/strings.h"
#include "muster/shm/message_frame.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

// What another rank's process has put in front of a message.
void fuzz_message_frame(const std::string& text) {
  const shm::MessageFrame wanted = shm::frame_of({.bytes = 8, .type = "float", .element = 4}, 1);
  shm::MessageFrame sent = wanted;
  std::memcpy(&sent, text.data(), std::min(text.size(), sizeof(sent)));
  shm::fits(wanted, sent);
  const std::string said = shm::misfit(wanted, sent, 0, 1).message();
  if (said.size() > 300 || printable(said) != said)
    std::abort();
}

}  // namespace muster
