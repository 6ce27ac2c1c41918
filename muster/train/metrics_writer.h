// Writes the numbers of a training run, one JSON object per line, for people and scripts
// (`metrics.jsonl`). Takes plain numbers of one rank; metrics.h gathers them over steps and ranks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/fd.h"

namespace muster {

class FolderLock;

class MetricsWriter {
 public:
  // Appends to `path`; an empty path writes nothing (ranks other than the main one). The writers of
  // one process may share a file; that of another is refused, but not by a later attempt of its
  // launch, as the environment tells it (MUSTER_LAUNCH, MUSTER_ATTEMPT). Blocking: some seconds,
  // while another process has the file. Throws: io; failed_precondition naming the other.
  explicit MetricsWriter(const std::string& path);

  // Prepares the file for a run that goes on after `step`, or starts with 0. From the first line
  // with a later "step" on, all lines are moved to `<path>.replaced`; so is an incomplete last
  // line. Each step is then in the file once, and nothing is lost. Returns the number of lines
  // moved. Throws: io.
  int64_t continue_after(int64_t step);

  // Writes one complete line at once. Non-finite values become null. Throws: io.
  void write(std::initializer_list<std::pair<const char*, double>> values);
  void write_line(const std::vector<std::pair<std::string, double>>& values);

  const std::string& path() const { return path_; }
  bool is_open() const { return file_.valid(); }

 private:
  std::string path_;
  Fd file_;
  std::shared_ptr<const FolderLock> lock_;
};

// Throws: failed_precondition naming the step, if the loss is NaN or infinite: further training is
// useless.
void check_loss(double loss, int64_t step);

// {"test_accuracy": 0.98}: the form of the last line that the example programs print. Non-finite
// values become the strings "NaN", "Infinity" and "-Infinity", by which `muster tasks` sees that a
// program has diverged.
std::string to_json_line(std::initializer_list<std::pair<const char*, double>> values);

}  // namespace muster
