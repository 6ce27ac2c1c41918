// LibTorch's own operators as events in a rank's trace, for some steps only: there are so many that tracing
// all steps would be slow and the trace large. For `--trace=operators`.
#pragma once

namespace muster {

// Traces the operators of the rank's steps 3 to 7 (note_step), in all threads.
void trace_operators();

}  // namespace muster
