// Both sides' frames are compared before any data moves, so that messages that do not fit are an
// error and no wrong numbers.
#include "muster/shm/message_frame.h"

#include <string.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "muster/base/strings.h"

namespace muster::shm {

namespace {

// Another process has written the frame, so that it may have no end.
std::string_view type_in(const MessageFrame& message) {
  return std::string_view(message.type, ::strnlen(message.type, sizeof(message.type)));
}

std::string shown(const MessageFrame& message) {
  const std::string type = printable(type_in(message));
  return type.empty() ? cat(message.bytes, " bytes")
                      : cat(message.bytes / std::max<uint64_t>(message.element, 1), " × ", type);
}

}  // namespace

MessageFrame frame_of(const Part& data, int tag) {
  MessageFrame frame{.bytes = data.bytes, .tag = tag, .element = data.element, .type = {}};
  if (data.type != nullptr)
    std::string_view(data.type).copy(frame.type, sizeof(frame.type) - 1);
  return frame;
}

// A type that one side does not know is not compared.
bool fits(const MessageFrame& wanted, const MessageFrame& sent) {
  const std::string_view type = type_in(wanted), of_sent = type_in(sent);
  return wanted.bytes == sent.bytes && wanted.tag == sent.tag &&
         (type.empty() || of_sent.empty() || type == of_sent);
}

Error misfit(const MessageFrame& wanted, const MessageFrame& sent, int from, int rank) {
  return invalid_argument("recv: expected ",
                          shown(wanted),
                          " from rank ",
                          from,
                          " with tag ",
                          wanted.tag,
                          ", got ",
                          shown(sent),
                          sent.tag == wanted.tag ? "" : cat(" with tag ", sent.tag),
                          " (rank ",
                          rank,
                          "); give both sides tensors of one type and size");
}

}  // namespace muster::shm
