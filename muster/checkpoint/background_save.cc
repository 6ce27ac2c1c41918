// The thread writes a copy of the image, so that the training may change its tensors meanwhile. Its
// failure waits for the next call, which throws it.
#include "muster/checkpoint/background_save.h"

#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/trace/span.h"

namespace muster {

// A destructor must not throw, so a failure that nobody has asked for is logged.
BackgroundSave::~BackgroundSave() {
  try {
    finish();
  } catch (const std::exception& error) {
    log_error("checkpoint: the previous checkpoint was not saved: ", error.what());
  }
}

// The thread waits for the copies, so that the training does not. Signals are for the threads of
// the program: one that this thread took would interrupt its writing.
void BackgroundSave::start(const SaveOptions& options, const CheckpointImage& image) {
  finish();
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this, options, copies = copy_image(image, copy_)]() mutable {
    try {
      copies.wait();
      write_image(options, copy_);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void BackgroundSave::finish() {
  if (thread_.joinable()) {
    const Span span("write checkpoint", Category::checkpoint);
    thread_.join();
  }
  if (failure_)
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace muster
