// After which step this process's training goes on. Checkpoints says so, and Metrics makes room in its files,
// so that a program need not. Nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// On rank 0. `attempt` is that of CheckpointsOptions; 0 for a step: the training begins again.
void note_resumed(int64_t step, int attempt);

// The step to go on after, for a file of metrics: once for each file and attempt. Nothing: it goes on as it
// is.
std::optional<int64_t> take_resumed(const std::string& path);

}  // namespace muster
