// One trace of all ranks' events, for Perfetto (ui.perfetto.dev) and chrome://tracing: a rank is a
// process there, its threads are threads, and collectives, which overlap, lie on tracks of their
// own. All on rank 0's clock. The launcher calls it when the ranks have ended; it takes files for
// what a stranger may have written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/lists.h"

namespace muster {

struct MergedTrace {
  std::string path;
  int64_t events = 0;
  int64_t lost = 0;            // that ranks had no room for
  Ints ranks;                  // whose files were there
  int world_size = 0;          // of the job: of the others' files nothing is known
  int64_t uncertainty_ns = 0;  // of the clocks of other hosts; -1: of one nobody has measured it
};

// Writes RUN_DIR/trace.json from RUN_DIR/trace/<attempt>/<rank>, of all attempts, and removes
// those. Nothing where there are none. Throws: io.
std::optional<MergedTrace> merge_trace(const std::string& run_dir);

// The same, but keeps the ranks' files: some may still be written.
std::optional<MergedTrace> copy_trace(const std::string& run_dir);

// The same of what an earlier launch's ranks of this host have left, whose launcher was killed
// before it could merge them. Where other hosts' ranks have files there too, these stay, and the
// trace is RUN_DIR/trace.HOST.json. Throws: io; then the files are still there.
std::optional<MergedTrace> merge_earlier_trace(const std::string& run_dir);

// Removes these files, merged or not.
void remove_earlier_trace(const std::string& run_dir);

}  // namespace muster
