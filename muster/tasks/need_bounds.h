// What a task may need at most, and of a GPU at least. For those who read needs: a spec file and
// the flags of a sweep.
#pragma once

namespace muster {

// Larger numbers are slips rather than wishes.
inline constexpr int kMaxTaskGpus = 4096;
inline constexpr int kMaxTaskCpus = 65'536;
inline constexpr double kLeastGpuShare = 0.001;  // leases count in thousandths of a GPU

}  // namespace muster
