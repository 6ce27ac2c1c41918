// The messages between a run of tasks and the server that it has on another host (`muster tasks
// --serve`): one JSON object a line, in both directions. Values and text. Whatever comes from the
// other side is checked here; a line that is no message is an error. For remote_host.h and
// server.h.
//
//   the run:     hello, begin, then start, end, signal and alive
//   the server:  host, then held, memory, output, ended, alive; cannot, as the last
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/tasks/hosts/task_host.h"

namespace muster {

inline constexpr size_t kLongestRemoteLine = size_t{16} << 20;
inline constexpr size_t kOutputPieceBytes = size_t{32} << 10;

// Both sides say so when they have nothing else to say; who hears nothing takes the other for dead.
// The server sooner, so that its tasks have ended when the run starts them elsewhere.
struct RemoteAlive {};
inline constexpr std::chrono::seconds kSayAliveEvery{5};
inline constexpr std::chrono::seconds kServerGivesUpAfter{45};
inline constexpr std::chrono::seconds kRunGivesUpAfter{65};

// First: who asks, and what has to be known of the machine.
struct RemoteHello {
  std::string version{};      // of muster, the same on both sides
  std::string name{};         // what the run calls the host
  std::string folder{};       // to work in; empty: where it is
  Environment environment{};  // set before anything else
  bool gpus = true;
  bool links = false;
  bool cpu_topology = false;
  bool memory = false;  // tasks ask for memory: what others use of it is to be told
  bool held = false;    // what other jobs than run_id hold of its GPUs is asked, too
  std::string run_id{};
};

struct RemoteBegin {
  std::string run_id{};
  std::string run_dir{};
  std::string mark{};  // MUSTER_MARK of what it starts
  Strings earlier{};   // of what earlier runs may have left there
  milliseconds grace{30'000};
  bool lease = true;
  Visibility visibility = Visibility::job;
};

struct RemoteStart {
  int id = 0;
  Task task{};  // name, argv, environment, directory and ranks
  int attempt = 0;
  Strings gpus{};  // UUIDs, neighbours side by side
  int units = 0;   // of each
  uint64_t memory_bytes = 0;
  int cpus = 0;  // that it may count on
  Ints bound{};
  std::string log{};
};

struct RemoteEnd {
  int id = 0;
  milliseconds grace{0};
};

struct RemoteSignal {  // to all tasks: one of those that a run only passes on
  int signal = 0;
};

// So much of the GPU is other jobs' now; 0: nothing any more.
struct RemoteHeld {
  std::string gpu{};
  int units = 0;
  std::string by{};
  bool operator==(const RemoteHeld&) const = default;
};

using RemoteHoldings = std::vector<RemoteHeld>;

// Other programs use so much of its memory now.
struct RemoteMemory {
  std::string gpu{};
  uint64_t bytes = 0;
};

struct RemoteInventory {
  std::string version{};
  Inventory inventory{};  // of one host
  RemoteHoldings held{};  // now, if that was asked
};

struct RemoteOutput {
  int id = 0;
  std::string bytes{};
};

struct RemoteEnded {
  TaskEnd end{};
};

struct RemoteCannot {  // the server ends
  std::string why{};
  bool stopped = false;  // by somebody there, who does not want it back
};

using RemoteMessage = std::variant<RemoteAlive,
                                   RemoteHello,
                                   RemoteBegin,
                                   RemoteStart,
                                   RemoteEnd,
                                   RemoteSignal,
                                   RemoteInventory,
                                   RemoteHeld,
                                   RemoteMemory,
                                   RemoteOutput,
                                   RemoteEnded,
                                   RemoteCannot>;

// One line, with its newline.
std::string to_line(const RemoteMessage& message);

// Throws: invalid_argument for a line that is none of them.
RemoteMessage remote_message_from(const std::string& line);

}  // namespace muster
