// After which step this process's training resumes, and where each of its files of metrics stands
// then. Checkpoints and Metrics say so; a training shares nothing with another one of the process
// that writes to another file. Nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// What a call of Checkpoints::restore() has made of the training.
enum class Beginning {
  anew,           // nothing was asked for or found: a new training
  again,          // restarted ranks found nothing: the training of the attempt before begins again
  from_saved_one  // a saved state was loaded
};

// On every rank. `attempt` is that of CheckpointsOptions; 0 for a step: the training begins again.
void note_resumed(int64_t step, int attempt);

// 0: it has not been resumed. Of the training that was resumed last, for what shows one number of a
// process.
int64_t resumed_step();

// The number of the last line that was written to the file of metrics; -1: none.
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
