// A line on standard error that says what is being read, while that takes long. On a terminal only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"

namespace muster {

class ReadingLine : NoCopy {
 public:
  ReadingLine();
  ~ReadingLine();  // takes the line away

  // Notes that so many more bytes of `path` have been read.
  void add(const std::string& path, size_t bytes);

 private:
  bool terminal_;
  bool shown_ = false;
  uint64_t bytes_ = 0;
  TimePoint next_;
};

}  // namespace muster
