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
     "the GPU's memory is full: a smaller batch, or GPUs with more (--gpus 'free>=40GiB')"},
    {"CUDA error: out of memory",
     "the GPU's memory is full, perhaps with others' work: see `muster devices`"},
    {"cudaErrorMemoryAllocation",
     "the GPU's memory is full, perhaps with others' work: see `muster devices`"},
    {"HIP out of memory",
     "the GPU's memory is full: a smaller batch, or GPUs with more (--gpus 'free>=40GiB')"},
    {"DefaultCPUAllocator: can't allocate", "the host's memory is full, or a limit on it is reached"},
    {"std::bad_alloc", "the host's memory is full, or a limit on it is reached"},
    {"MemoryError", "the host's memory is full, or a limit on it is reached"},
    {"no kernel image is available",
     "built for other GPUs than this one: another LibTorch, or TORCH_CUDA_ARCH_LIST"},
    {"CUDA driver version is insufficient", "the driver is older than the program's CUDA: update it"},
    {"uncorrectable ECC error",
     "the GPU has a memory fault: reset or replace it, and leave it out (--gpus '!N')"},
    {"device-side assert triggered",
     "a kernel's check failed, often an index out of range: CUDA_LAUNCH_BLOCKING=1 "
     "shows where"},
    {"an illegal memory access", "a kernel's bad address: CUDA_LAUNCH_BLOCKING=1 shows where"},
    {"terminate called without an active exception",
     "a thread went on when what it needs had gone: in C++, one that nobody joined; in Python, over Gloo, "
     "PyTorch's at the script's end, now and then, under torchrun too: os._exit(0) there"},
    {"No space left on device", "a disk, or /dev/shm, is full"},
    {"Too many open files", "the limit on open files is reached: ulimit -n"},
    {"Address already in use", "another process has the port: --master-port, or leave it out for a free one"},
    {"error while loading shared libraries", "a library is missing: LD_LIBRARY_PATH, or the program's RPATH"},
    {"ModuleNotFoundError", "Python does not find a module: is it the right environment (venv, PYTHONPATH)?"},
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
