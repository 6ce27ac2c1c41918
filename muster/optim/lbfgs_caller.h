// LBFGS takes all its parameters for one vector: it measures them, and decides by the measure how
// far to go and when to stop. Over the parts that a rank has, each rank would decide for itself.
#pragma once

namespace muster::optim {

// Throws: failed_precondition if LBFGS's step calls this, further out on this thread's stack.
// `call` is in the message, as is `rank`. It looks through the names of
// LibTorch, which costs some milliseconds: call it in the first steps only.
void refuse_lbfgs_caller(const char* call, int rank);

}  // namespace muster::optim
