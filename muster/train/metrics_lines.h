// Which lines of a file of metrics are of steps that the training takes again. It is known by path,
// since several Metrics of a process may write to one file; trainings that write to different files
// share nothing. Used only by Metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/checkpoint/training/resumed_training.h"

namespace muster {

// The number of the last line that was written to the file; -1: none.
int64_t last_written(const std::string& path);
void note_written(const std::string& path, int64_t step);

// The training that writes to `path` begins like this. `last` is what last_written() was in the
// saved state; -1: none was.
void note_beginning(const std::string& path, Beginning beginning, int64_t last);

// Before a line `step` is written: the number after which lines of the file are of steps that are
// taken again. Nothing: there are none. A file of which nobody has said how its training begins is
// asked once after each resume of the process: its lines from `step` on are taken again.
std::optional<int64_t> cut_due(const std::string& path, int64_t step);
void note_cut(const std::string& path);

}  // namespace muster
