// Memory that is not there for a while, on purpose. LibTorch cannot always be told to refuse a read
// of it, which is then a fault near address zero: the signal's report says why.
#pragma once

#include <atomic>
#include <cstddef>

namespace muster {

struct AbsentMemory {
  std::atomic<size_t> bytes = 0;            // of the largest piece
  std::atomic<const char*> note = nullptr;  // what to say of it, for as long as the process lives
};

inline AbsentMemory absent_memory;

inline void note_absent_memory(size_t bytes, const char* note) {
  if (bytes > absent_memory.bytes)
    absent_memory.bytes = bytes;
  absent_memory.note = note;
}

}  // namespace muster
