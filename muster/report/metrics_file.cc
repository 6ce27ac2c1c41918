#include "muster/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_depth.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;  // names as they were written

constexpr size_t kReadAtOnce = size_t{1} << 16;
constexpr const char* kStep = "step";

SeriesPoint joined(const SeriesPoint& a, const SeriesPoint& b) {
  const double count = static_cast<double>(a.count + b.count);
  const double mean =
      (a.mean * static_cast<double>(a.count) + b.mean * static_cast<double>(b.count)) / count;
  return {
      b.step, mean, std::min(a.low, b.low), std::max(a.high, b.high), a.count + b.count, a.part};
}

// Halves the number of points: neighbours of one part become one.
void thin_out(std::vector<SeriesPoint>& points) {
  std::vector<SeriesPoint> fewer;
  fewer.reserve(points.size() / 2 + 1);
  for (size_t i = 0; i < points.size(); ++i) {
    const bool pair = i + 1 < points.size() && points[i].part == points[i + 1].part;
    fewer.push_back(pair ? joined(points[i], points[i + 1]) : points[i]);
    if (pair)
      ++i;
  }
  points = std::move(fewer);
}

class MetricsReader {
 public:
  explicit MetricsReader(const MetricsLimits& limits) : limits_(limits) {}

  void take_line(std::string_view line, bool too_long) {
    ++file_.num_lines;
    if (trim(line).empty() && !too_long)
      return;
    const Json json = too_long || nests_too_deep(line) ? Json(Json::value_t::discarded)
                                                       : Json::parse(line, nullptr, false);
    if (!json.is_object()) {
      if (file_.num_broken++ == 0)
        file_.first_broken = file_.num_lines;
      return;
    }
    const auto step = json.find(kStep);
    const bool has_step = step != json.end() && step->is_number();
    file_.has_steps = file_.has_steps || has_step;
    const double at = has_step ? step->get<double>() : static_cast<double>(file_.num_lines);
    if (at < last_step_)
      ++part_;
    last_step_ = at;
    take_members(json, "", at);
  }

  MetricsFile finish() {
    file_.found = true;
    file_.series_left_out = left_out_.size();
    return std::move(file_);
  }

  void say_cut() { file_.cut = true; }

 private:
  void take_members(const Json& object, const std::string& outer, double at) {
    for (const auto& [name, value] : object.items()) {
      if (outer.empty() && name == kStep)
        continue;
      const std::string whole = outer.empty() ? name : cat(outer, ".", name);
      if (value.is_object() && outer.empty())
        take_members(value, name, at);
      if (value.is_number()) {
        take_value(whole, at, value.get<double>());
      } else if (value.is_null() || value.is_string()) {
        take_nothing(whole, value.is_null());
      }
    }
  }

  Series* series_of(const std::string& name) {
    if (const auto found = places_.find(name); found != places_.end())
      return &file_.series[found->second];
    if (file_.series.size() >= limits_.series) {
      if (left_out_.size() < kMostNamesLeftOut)
        left_out_.emplace(name, 0);
      return nullptr;
    }
    places_.emplace(name, file_.series.size());
    file_.series.push_back({.name = name});
    return &file_.series.back();
  }

  // A null, which is what a writer makes of NaN, may come before the first number; a text is none's
  // value.
  void take_nothing(const std::string& name, bool is_null) {
    if (!is_null && !places_.contains(name))
      return;
    if (Series* const series = series_of(name))
      ++series->num_missing;
  }

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

  // Every point stands for as many values as the others, so that all of a curve is as smooth.
  void add_point(Series& series, const SeriesPoint& point) {
    std::vector<SeriesPoint>& points = series.points;
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
    values_a_point *= 2;
    // What cannot be shortened so, as where each part has one value, loses its oldest points.
    if (points.size() > limits_.points)
      points.erase(points.begin());
  }

  static constexpr size_t kMostNamesLeftOut = 10'000;

  MetricsLimits limits_;
  MetricsFile file_ = {};
  std::unordered_map<std::string, size_t> places_ = {};
  std::unordered_map<std::string, int> left_out_ = {};
  std::unordered_map<std::string, int64_t> values_a_point_ = {};  // of each series
  double last_step_ = -HUGE_VAL;
  int part_ = 0;
};

// Hands each line to the reader. A line without an end, which is being written, counts as one.
void read_lines(int fd,
                const std::string& path,
                const MetricsLimits& limits,
                MetricsReader& reader) {
  std::string line;
  bool too_long = false;
  uint64_t total = 0;
  std::string buffer(kReadAtOnce, '\0');
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      fail_errno(cat("cannot read '", path, "'"), errno);
    if (got == 0)
      break;
    std::string_view rest(buffer.data(), static_cast<size_t>(got));
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view piece = rest.substr(0, end);
      too_long = too_long || line.size() + piece.size() > limits.line;
      if (too_long)
        line.clear();
      if (!too_long)
        line += piece;
      if (end == std::string_view::npos)
        break;
      reader.take_line(line, std::exchange(too_long, false));
      line.clear();
      rest.remove_prefix(end + 1);
    }
    total += static_cast<uint64_t>(got);
    if (total >= limits.bytes)
      return reader.say_cut();
  }
  if (!line.empty() || too_long)
    reader.take_line(line, too_long);
}

}  // namespace

std::vector<SeriesPoint> thinned(std::vector<SeriesPoint> points, size_t most) {
  size_t before = points.size() + 1;
  while (points.size() > most && points.size() < before) {
    before = points.size();
    thin_out(points);
  }
  if (points.size() > most)
    points.erase(points.begin(), points.end() - static_cast<ptrdiff_t>(most));
  return points;
}

MetricsFile read_metrics(const std::string& path, const MetricsLimits& limits) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    return {};
  const Fd fd = open_plain_file(path);
  MetricsReader reader(limits);
  read_lines(fd.get(), path, limits, reader);
  return reader.finish();
}

}  // namespace muster
