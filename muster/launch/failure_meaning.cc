#include "muster/launch/failure_meaning.h"

#include <string_view>

namespace muster {

namespace {

struct Meaning {
  const char* said;
  const char* meant;
};

// The first that is found holds, so causes stand before what they cause.
constexpr Meaning kMeanings[] = {
    {"CUDA out of memory",
     "the GPU's memory is full: use a smaller batch, or GPUs with more memory (--gpus 'free>=40GiB')"},
    {"CUDA error: out of memory",
     "the GPU's memory is full, perhaps because other jobs use it: see `muster devices`"},
    {"cudaErrorMemoryAllocation",
     "the GPU's memory is full, perhaps because other jobs use it: see `muster devices`"},
    {"HIP out of memory",
     "the GPU's memory is full: use a smaller batch, or GPUs with more memory (--gpus 'free>=40GiB')"},
    {"DefaultCPUAllocator: can't allocate", "the host's memory is full, or a limit on it is reached"},
    {"std::bad_alloc", "the host's memory is full, or a limit on it is reached"},
    {"MemoryError", "the host's memory is full, or a limit on it is reached"},
    {"no kernel image is available",
     "the program was built for other GPUs than this one: use another LibTorch, or set TORCH_CUDA_ARCH_LIST"},
    {"CUDA driver version is insufficient", "the driver is older than the program's CUDA: update the driver"},
    {"uncorrectable ECC error",
     "the GPU has a memory fault: reset or replace it, and leave it out (--gpus '!N')"},
    {"device-side assert triggered",
     "an assertion in a kernel failed, often because an index is out of range: CUDA_LAUNCH_BLOCKING=1 shows "
     "where"},
    {"an illegal memory access", "a kernel used an invalid address: CUDA_LAUNCH_BLOCKING=1 shows where"},
    {"terminate called without an active exception",
     "a thread still ran when the program ended: in C++, a std::thread that nobody joined; in Python over "
     "Gloo, sometimes a thread of PyTorch, also under torchrun: end the script with os._exit(0)"},
    {"No space left on device", "a disk, or /dev/shm, is full"},
    {"Too many open files", "the limit on open files is reached: raise it (ulimit -n)"},
    {"Address already in use",
     "another process uses the port: give another --master-port, or none to have a free one chosen"},
    {"error while loading shared libraries",
     "a library is missing: correct LD_LIBRARY_PATH or the program's RPATH"},
    {"ModuleNotFoundError",
     "Python does not find a module: see whether this is the right environment (venv, PYTHONPATH)"},
    {"Watchdog caught collective operation timeout",
     "a rank did not join a collective: see the other ranks' logs"},
    {"ncclRemoteError", "it lost another rank, or the network to it: see that rank"},
    {"Connection closed by peer", "it lost another rank, or the network to it: see that rank"},
    {"Connection reset by peer", "it lost another rank, or the network to it: see that rank"},
};

bool contains(const WorkerExit& exit, std::string_view said) {
  const auto in = [&](const std::string& text) { return text.find(said) != std::string::npos; };
  if (in(exit.message) || in(exit.stack)) return true;
  for (const std::string& line : exit.last_lines) {
    if (in(line)) return true;
  }
  return false;
}

}  // namespace

std::string failure_meaning(const WorkerExit& exit) {
  for (const Meaning& meaning : kMeanings) {
    if (contains(exit, meaning.said)) return meaning.meant;
  }
  return "";
}

}  // namespace muster
