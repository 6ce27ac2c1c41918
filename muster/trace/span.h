// A named piece of a rank's work, from here to the end of the scope. Users write them around what
// they want to see in `muster top`, in warnings of late ranks and in a trace; muster's own training
// step, loader, groups and checkpoints write theirs by the same class.
//
//   muster::Span span("tokenize");
//
// Without a run folder (a program that no `muster run` has started) all of this does nothing.
#pragma once

#include <cstdint>

#include "muster/base/no_copy.h"
#include "muster/trace/category.h"

namespace muster {

class Span : NoCopy {
 public:
  // Of the category of what it is within. `name`: the first 39 bytes are kept.
  explicit Span(const char* name) noexcept;
  Span(const char* name, Category category) noexcept;
  ~Span();

 private:
  Span(const char* name, Category category, bool inherits) noexcept;

  const void* thread_ = nullptr;  // where it was entered; nullptr: nowhere
  uint32_t depth_ = 0;
  int64_t begin_ns_ = 0;
};

// The main thread's time counts as this while it is in no span that says it, from now on: a
// training loop of one's own is other time otherwise. DistributedDataParallel tells it of forwards
// and backwards.
void count_outside_as(Category category) noexcept;

// The place that the rank has come to. TrainStep and the loader tell the first two; a training loop
// of one's own may.
void note_step(int64_t step) noexcept;
void note_samples(int64_t more) noexcept;  // beside those before
void note_loss(double loss) noexcept;

}  // namespace muster
