// Numbers of a training run, one JSON object a line, for people and for scripts (`metrics.jsonl`). Plain
// numbers of one rank; metrics.h gathers them over the steps and the ranks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/fd.h"

namespace muster {

class MetricsWriter {
 public:
  // Appends to `path`; an empty path writes nothing (ranks other than the main one). Throws: io.
  explicit MetricsWriter(const std::string& path);

  // Makes room for a run that goes on after `step`, or begins with 0: from the first line on whose "step" is
  // later, all lines are moved to `<path>.replaced`, and so is a last line that is not whole. So each step is
  // in the file once, and nothing is lost. Returns how many were moved. Throws: io.
  int64_t continue_after(int64_t step);

  // Writes one line, whole, at once. Values that are not finite become null. Throws: io.
  void write(std::initializer_list<std::pair<const char*, double>> values);
  void write_line(const std::vector<std::pair<std::string, double>>& values);

 private:
  std::string path_;
  Fd file_;
};

// Throws: failed_precondition naming the step, when the loss is NaN or an infinity: what follows is lost.
void check_loss(double loss, int64_t step);

// {"test_accuracy": 0.98}, the form of the last line that the example programs print. Values that are not
// finite become the texts "NaN", "Infinity" and "-Infinity", by which `muster tasks` knows that a program has
// diverged.
std::string to_json_line(std::initializer_list<std::pair<const char*, double>> values);

}  // namespace muster
