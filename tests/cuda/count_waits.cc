// Counts how often a program waits for its GPU, for LD_PRELOAD: the calls of CUDA's runtime that
// block the host. count_waits_so_far() is for the program itself (gpu_probe.cc).
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace {

std::atomic<int64_t> waits = 0;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int64_t count_waits_so_far() {
  return waits;
}

int cudaStreamSynchronize(void* stream) {
  ++waits;
  static const auto real = next<int (*)(void*)>("cudaStreamSynchronize");
  return real(stream);
}

int cudaEventSynchronize(void* event) {
  ++waits;
  static const auto real = next<int (*)(void*)>("cudaEventSynchronize");
  return real(event);
}

int cudaDeviceSynchronize() {
  ++waits;
  static const auto real = next<int (*)()>("cudaDeviceSynchronize");
  return real();
}

int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  ++waits;
  static const auto real = next<int (*)(void*, const void*, size_t, int)>("cudaMemcpy");
  return real(to, from, bytes, kind);
}

}  // extern "C"
