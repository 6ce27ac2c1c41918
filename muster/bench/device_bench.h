// `muster-bench device`: measures the devices of this machine one after the other, remembers the
// scores, and prints them.
#pragma once

#include <string>

namespace muster {

struct DeviceBenchOptions {
  std::string gpus{};  // as `muster run --gpus`; empty: all
  bool cpu = false;    // a CPU slot, not the GPUs
  int cpu_slots = 0;   // 0: MUSTER_CPU_SLOTS, or 2: how many share the cores
  bool again = false;  // also what was measured before
  std::string dtype = "float32";
  double seconds = 0.5;  // for each batch size
  std::string cache{};   // empty: default_score_cache()
  bool json = false;
};

// Returns the exit code. Blocking: a few seconds a device; says each on standard error. A GPU that
// another job holds is not measured, and said so. Throws: Error before anything is measured.
int bench_devices(const DeviceBenchOptions& options);

}  // namespace muster
