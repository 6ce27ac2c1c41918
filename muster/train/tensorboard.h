// Writes scalars for TensorBoard: an event file (TFRecords of hand-encoded protobuf messages,
// without dependencies). Called by metrics.h; can be used on its own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/fd.h"

namespace muster {

class EventFile {
 public:
  // Starts a new file in the folder, `events.out.tfevents.…`. Throws: io.
  explicit EventFile(const std::string& folder);

  // TensorBoard keeps only 32 bits of each number. Throws: io.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);

  // Marks a run resumed after `step`: TensorBoard then hides later steps of earlier files.
  void continue_after(int64_t step);

  const std::string& path() const { return path_; }

 private:
  void write_event(const std::string& event);

  std::string path_;
  Fd file_;
  std::string unwritten_;
};

}  // namespace muster
