// The file is read once, in pieces, and never as a whole. A series keeps at most twice its number
// of points: whenever there are too many, neighbours are joined two by two, and from then on every
// new point stands for twice as many values. So a curve of any length is equally smooth everywhere.
#include "muster/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of names

constexpr size_t kReadAtOnce = size_t{1} << 16;
constexpr auto kStep = "step";

// Returns a point that stands for the values of both; `b` comes after `a`.
SeriesPoint joined(const SeriesPoint& a, const SeriesPoint& b) {
  const auto count_a = static_cast<double>(a.count);
  const auto count_b = static_cast<double>(b.count);
  return {.step = b.step,
          .mean = (a.mean * count_a + b.mean * count_b) / (count_a + count_b),
          .low = std::min(a.low, b.low),
          .high = std::max(a.high, b.high),
          .count = a.count + b.count,
          .part = a.part};
}

// Halves the number of points: two neighbours of one part become one.
void thin_out(SeriesPoints& points) {
  SeriesPoints fewer;
  fewer.reserve(points.size() / 2 + 1);
  for (size_t i = 0; i < points.size(); ++i) {
    fewer.push_back(points[i]);
    const bool pair = i + 1 < points.size() && points[i].part == points[i + 1].part;
    if (pair)
      fewer.back() = joined(fewer.back(), points[++i]);
  }
  points = std::move(fewer);
}

class MetricsReader {
 public:
  explicit MetricsReader(const MetricsLimits& limits) : limits_(limits) {}

  // Takes the next bytes of the file. A line may come in several pieces.
  void take_bytes(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      add_to_line(bytes.substr(0, end));
      if (end == npos)
        return;
      end_line();
      bytes.remove_prefix(end + 1);
    }
  }

  // The file goes on, but no more of it is read.
  void cut() { file_.cut = true; }

  // A last line without an end, which may be being written, counts as one, unless the file was cut.
  MetricsFile finish() {
    const bool has_rest = !line_.empty() || line_is_too_long_;
    if (has_rest && !file_.cut)
      end_line();
    file_.found = true;
    file_.series_left_out = left_out_.size();
    return std::move(file_);
  }

 private:
  // A line that is too long is dropped as it comes, so it never needs much memory.
  void add_to_line(std::string_view piece) {
    line_is_too_long_ |= line_.size() + piece.size() > limits_.line;
    if (line_is_too_long_) {
      line_.clear();
    } else {
      line_ += piece;
    }
  }

  void end_line() {
    take_line(line_, std::exchange(line_is_too_long_, false));
    line_.clear();
  }

  // A line that is no JSON object is counted and left out: a killed program may have left half of
  // one.
  void take_line(std::string_view line, bool too_long) {
    ++file_.num_lines;
    if (trim(line).empty() && !too_long)
      return;
    const auto json = parsed_json<Json>(line);  // a line that was too long is empty by now
    if (!json.is_object()) {
      if (file_.num_broken++ == 0)
        file_.first_broken = file_.num_lines;
      return;
    }
    const Json step = member_or_null(json, kStep);
    file_.has_steps |= step.is_number();
    const double at = step.is_number() ? step.get<double>() : static_cast<double>(file_.num_lines);
    // Steps begin again at an earlier one after a restart from a checkpoint.
    if (at < last_step_)
      ++part_;
    last_step_ = at;
    take_members(json, "", at);
  }

  // Takes the values of a line's object; `outer` is the name of the object in it that is meant.
  void take_members(const Json& object, const std::string& outer, double at) {
    for (const auto& [name, value] : object.items()) {
      if (outer.empty() && name == kStep)
        continue;
      const auto whole = cat(framed("", outer, "."), name);
      if (value.is_object() && outer.empty())
        take_members(value, name, at);
      if (value.is_number()) {
        take_value(whole, at, value.get<double>());
      } else if (value.is_null() || value.is_string()) {
        take_nothing(whole, value.is_null());
      }
    }
  }

  // Returns the series of this name; nullptr if there are too many series for another one.
  Series* series_of(const std::string& name) {
    if (const size_t* const place = value_at(places_, name))
      return &file_.series[*place];
    if (file_.series.size() >= limits_.series) {
      if (left_out_.size() < kMostNamesLeftOut)
        left_out_.insert(name);
      return nullptr;
    }
    places_.emplace(name, file_.series.size());
    file_.series.push_back({.name = name});
    return &file_.series.back();
  }

  // A writer makes null of NaN, so a null may come before the series' first number. A text counts
  // only in a series that has had numbers or nulls.
  void take_nothing(const std::string& name, bool is_null) {
    if (!is_null && !places_.contains(name))
      return;
    if (Series* const series = series_of(name))
      ++series->num_missing;
  }

  // Series keep their extremes themselves, since joined points lose the step of a single value.
  void take_value(const std::string& name, double at, double value) {
    if (!std::isfinite(value))
      return take_nothing(name, true);
    Series* const series = series_of(name);
    if (series == nullptr)
      return;
    if (series->num_values++ == 0) {
      series->first = series->least = series->most = value;
      series->least_step = series->most_step = at;
    }
    if (value < series->least) {
      series->least = value;
      series->least_step = at;
    }
    if (value > series->most) {
      series->most = value;
      series->most_step = at;
    }
    series->last = value;
    series->last_step = at;
    add_point(*series, {at, value, value, value, 1, part_});
  }

  // Every point stands for as many values as the others, except the last of each part.
  void add_point(Series& series, const SeriesPoint& point) {
    SeriesPoints& points = series.points;
    int64_t& values_a_point = values_a_point_.try_emplace(series.name, 1).first->second;
    const bool fits =
        !points.empty() && points.back().part == point.part && points.back().count < values_a_point;
    if (fits) {
      points.back() = joined(points.back(), point);
      return;
    }
    points.push_back(point);
    if (points.size() <= limits_.points)
      return;
    thin_out(points);
    if (values_a_point <= INT64_MAX / 2)
      values_a_point *= 2;
    // Parts of one value each have no neighbours to join, and then the oldest point goes.
    if (points.size() > limits_.points)
      points.erase(points.begin());
  }

  static constexpr size_t kMostNamesLeftOut = 10'000;

  MetricsLimits limits_;
  MetricsFile file_;
  std::string line_;  // what has come of the current line
  bool line_is_too_long_ = false;
  std::unordered_map<std::string, size_t> places_;           // by name, in file_.series
  std::unordered_set<std::string> left_out_;                 // names without a series
  std::unordered_map<std::string, int64_t> values_a_point_;  // by the series' name
  double last_step_ = -HUGE_VAL;
  int part_ = 0;
};

// Hands the file to the reader, up to `most_bytes`.
void read_into(MetricsReader& reader, int fd, const std::string& path, uint64_t most_bytes) {
  std::string buffer(kReadAtOnce, '\0');
  uint64_t total = 0;
  while (total < most_bytes) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0)
      return;
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      fail_errno(errno, "cannot read '", path, "'");
    reader.take_bytes(std::string_view(buffer.data(), got));
    total += got;
  }
  reader.cut();
}

}  // namespace

// Points of one value each, such as those of many short parts, cannot be joined; the last ones
// stay.
SeriesPoints thinned(SeriesPoints points, size_t most) {
  size_t before = points.size() + 1;
  while (points.size() > most && points.size() < before) {
    before = points.size();
    thin_out(points);
  }
  if (points.size() > most)
    points.erase(points.begin(), points.end() - static_cast<ptrdiff_t>(most));
  return points;
}

// A program that has not logged yet has no file.
MetricsFile read_metrics(const std::string& path, const MetricsLimits& limits) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    return {};
  const Fd fd = open_plain_file(path);
  MetricsReader reader(limits);
  read_into(reader, fd.get(), path, limits.bytes);
  return reader.finish();
}

}  // namespace muster
