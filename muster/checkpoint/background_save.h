// Writes checkpoint images in a thread, one at a time, while training goes on.
#pragma once

#include <exception>
#include <thread>

#include "muster/base/no_copy.h"
#include "muster/checkpoint/image.h"

namespace muster {

class BackgroundSave : NoCopy {
 public:
  BackgroundSave() = default;
  ~BackgroundSave();  // waits; logs a failure that no call has thrown

  // Blocking: until the previous image is written, and this one copied; copies from a GPU are only
  // started. Throws: as finish().
  void start(const SaveOptions& options, const CheckpointImage& image);

  // Blocking: until the last image is written. Throws: once, what its writing threw.
  void finish();

 private:
  CheckpointImage copy_;  // the thread's while it runs; its memory is reused
  std::thread thread_;
  std::exception_ptr failure_;
};

}  // namespace muster
