// Writes images of checkpoints in a thread, one at a time, while training goes on.
#pragma once

#include <exception>
#include <string>
#include <thread>

#include "muster/checkpoint/image.h"

namespace muster {

class BackgroundSave {
 public:
  BackgroundSave() = default;
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  ~BackgroundSave();  // waits; a failure that nobody asked for goes to the log

  // Blocking: until the image is copied, and the one before is written. Throws: as finish().
  void start(const CheckpointOptions& options, const CheckpointImage& image);

  // Blocking: until the last image is written. Throws: what its writing threw, once.
  void finish();

 private:
  CheckpointImage copy_;  // the thread's while it runs; its memory is used again
  std::thread thread_;
  std::exception_ptr failure_;
};

}  // namespace muster
