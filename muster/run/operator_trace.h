// LibTorch's own operators as events of a rank's trace, for some of its steps: there are so many that all
// steps would be slow and their trace large. For `--trace=operators`.
#pragma once

namespace muster {

// From now on: the operators of steps 3 to 7 that the rank takes (note_step), of all threads.
void trace_operators();

}  // namespace muster
