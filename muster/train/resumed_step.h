// After which step this process's training resumes. Checkpoints says so, Metrics makes room in its files, and
// TrainStep counts from there, so that a program need not. Nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// On every rank. `attempt` is that of CheckpointsOptions; 0 for a step: the training begins again.
void note_resumed(int64_t step, int attempt);

// 0: it has not been resumed.
int64_t resumed_step();

// The step to go on after, for a file of metrics that is not ready for this attempt yet. Nothing: it is.
std::optional<int64_t> resumed_step(const std::string& path);
void note_made_ready(const std::string& path);

}  // namespace muster
