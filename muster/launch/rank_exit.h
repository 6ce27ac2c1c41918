// How one rank ended: the last of the launcher's values (Inventory → Plan → RankSpec →
// RankExit).
#pragma once

#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/supervise/cause.h"

namespace muster {

// Facts that a rank of muster::run has told of its failure, beside words.
struct ErrorFacts {
  std::string code{};       // "peer_failed", of a muster::Error
  Ints lost_ranks{};        // of the job, where it failed of their loss and knows them
  std::string signal{};     // that its handler told of, "SIGSEGV"
  Strings said{};           // by that handler, on standard error too: a line, then its stack
  bool left_early = false;  // its function returned while others made another call
  Account account = Account::none;  // as it was found in its words, which need not be here any more
};

struct RankExit {
  int rank = 0;
  int local_rank = 0;
  std::string host{};
  std::string device{};  // "GPU-<uuid>" or "cpu:<slot>"
  int pid = 0;
  int master_port = 0;  // MASTER_PORT, as it was told; 0: not known
  bool started = true;  // false: the job had ended before
  int exit_code = 0;    // when signal == 0
  int signal = 0;
  int sent_signal = 0;          // what the launcher had sent it to end it; 0: it ended by itself
  std::string cause{};          // in plain words
  std::string message{};        // of the exception that it reported in its error file
  std::string stack{};          // and where that came from
  ErrorFacts facts{};           // beside them
  Strings last_lines{};         // of its standard error
  bool lines_in_sight = false;  // the console shows them, and nearly nothing after them
  std::string stderr_log{};     // the file that has all of it; empty: none
  milliseconds after{0};        // since start
  WallTime at{};
  // The same moment on the clock of its host that never jumps; 0: not known.
  milliseconds host_clock{0};

  bool failed() const { return exit_code != 0 || signal != 0; }
  bool failed_by_itself() const { return failed() && sent_signal == 0; }
  // The exit code as a shell says it: that, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : exit_code; }
};

using RankExits = std::vector<RankExit>;

}  // namespace muster
