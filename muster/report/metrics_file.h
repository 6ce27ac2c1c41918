// The numbers of a run as lines over its steps, read from metrics.jsonl: what charts are drawn of.
// A file of any length becomes a bounded number of points. Called by job_run.cc; knows nothing of
// HTML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// One value, or several neighbours where there are more than a chart can show.
struct SeriesPoint {
  double step = 0;  // of the last one
  double mean = 0;
  double low = 0;
  double high = 0;
  int64_t count = 1;
  int part = 0;  // grows where steps begin again at an earlier one: no line joins two parts
};
using SeriesPoints = std::vector<SeriesPoint>;

struct Series {
  std::string name{};
  SeriesPoints points{};
  int64_t num_values = 0;
  int64_t num_missing = 0;  // null or a text, as what is not finite is written
  double first = 0;
  double last = 0;
  double last_step = 0;
  double least = 0;
  double least_step = 0;
  double most = 0;
  double most_step = 0;
};

struct MetricsLimits {
  size_t points = 2000;  // of each series
  size_t series = 64;
  uint64_t bytes = uint64_t{512} << 20;  // of the file
  size_t line = size_t{1} << 20;
};

struct MetricsFile {
  bool found = false;
  bool has_steps = false;  // else a value's place is the number of its line
  int64_t num_lines = 0;
  int64_t num_broken = 0;    // lines that are no JSON object
  int64_t first_broken = 0;  // the number of the first of them, from 1
  size_t series_left_out = 0;
  bool cut = false;              // the file is longer than the limit
  std::vector<Series> series{};  // in the order in which they were met
};

// Reads the numbers of each line's object, and those of objects in it as "outer.inner". A file that
// is not there is no error. Throws: io.
MetricsFile read_metrics(const std::string& path, const MetricsLimits& limits = {});

// Returns at most `most` points; where there were more, neighbours are joined.
SeriesPoints thinned(SeriesPoints points, size_t most);

}  // namespace muster
