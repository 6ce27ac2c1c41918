#include <cstdlib>
#include <optional>

#include "muster/cluster/agent_spec.h"
#include "muster/cluster/messages.h"
#include "muster/launch/lease_note.h"
#include "muster/placement/plan_json.h"
#include "muster/tasks/hosts/remote_message.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// What was read can be written, and is the same when it is read again.
template <class Read, class Write>
void check_again(const std::string& text, const Read& read, const Write& write) {
  std::optional<std::string> once;
  answer_or_error([&] { once = write(read(text)); });
  if (once && write(read(*once)) != *once)
    std::abort();
}

}  // namespace

// What hosts of a job say to each other, by a store and by a pipe, and what lies in files of the
// runtime folder.
void fuzz_messages(const std::string& text) {
  check_again(text, report_from_text, [](const Report& report) { return to_text(report); });
  check_again(text, order_from_text, [](const Order& order) { return to_text(order); });
  check_again(
      text,
      [](const std::string& line) { return host_ranks_from_json(line, "fuzz"); },
      host_ranks_to_json);
  check_again(text, agent_spec_from, [](const AgentSpec& spec) { return to_line(spec); });
  check_again(
      text, remote_message_from, [](const RemoteMessage& message) { return to_line(message); });
  if (const auto note = lease_note_from_bytes(text)) {
    if (lease_note_to_bytes(*note).size() != kLeaseNoteBytes)
      std::abort();
  }
}

}  // namespace muster
