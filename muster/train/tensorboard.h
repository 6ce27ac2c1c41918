// Writes scalars that TensorBoard shows: an event file (TFRecords of hand-encoded protobuf messages; nothing
// else is needed). Called by metrics.h; good on its own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/fd.h"

namespace muster {

class EventFile {
 public:
  // Begins a file of its own in the folder, `events.out.tfevents.…`. Throws: io.
  explicit EventFile(const std::string& folder);

  // TensorBoard keeps 32 bits of a number. Throws: io.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);

  // A run that goes on after `step`: TensorBoard leaves out what earlier files have of later steps.
  void continue_after(int64_t step);

  const std::string& path() const { return path_; }

 private:
  void write_event(const std::string& event);

  std::string path_;
  Fd file_;
};

}  // namespace muster
