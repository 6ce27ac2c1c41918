// LibTorch's own operators, and on GPUs their kernels, as events in a rank's trace. For some steps
// only: there are so many that tracing all steps would be slow and the trace large. For
// `--trace=operators`.
#pragma once

namespace muster {

// Traces steps 3 to 7 of the rank (note_step), in all threads.
void trace_operators();

// The rank takes no more steps, and may have taken fewer than 7.
void end_operator_trace();

}  // namespace muster
