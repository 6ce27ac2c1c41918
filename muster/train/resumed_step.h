// After which step this process's training goes on. Checkpoints says so, and Metrics makes room in its files,
// so that a program need not. Nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// On rank 0. `attempt` is that of CheckpointsOptions; 0 for a step: the training begins again.
void note_resumed(int64_t step, int attempt);

// The step to go on after, for a file of metrics that is not ready for this attempt yet. Nothing: it is.
std::optional<int64_t> resumed_step(const std::string& path);
void note_made_ready(const std::string& path);

}  // namespace muster
