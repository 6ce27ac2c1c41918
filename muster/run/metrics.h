// Numbers of a training run, one JSON object a line, for people and for scripts (`metrics.jsonl`).
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "muster/base/fd.h"

namespace muster {

class MetricsWriter {
 public:
  // Appends to `path`; an empty path writes nothing (ranks other than the main one). Throws: io.
  explicit MetricsWriter(const std::string& path);

  // Writes one line, whole, at once. Values that are not finite become null. Throws: io.
  void write(std::initializer_list<std::pair<const char*, double>> values);

 private:
  std::string path_;
  Fd file_;
};

// {"test_accuracy": 0.98}, the form of the last line that the example programs print.
std::string to_json_line(std::initializer_list<std::pair<const char*, double>> values);

}  // namespace muster
