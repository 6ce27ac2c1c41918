// Attempts are put into rows in the order in which they began. A part of a GPU gets the height of
// its part, at the highest place that the fewest others have at that time; a CPU task gets the
// first row that is free.
#include "muster/tasks/report/timeline_rows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

// A row's height in thousandths, as leases count.
constexpr int kWholeRow = 1000;

class TimelineMaker {
 public:
  TimelineMaker(const TaskResults& results, const Inventory& inventory)
      : results_(results), inventory_(inventory) {}

  // A row is busy by the share of the whole time that its bars take, each by its height.
  Timeline make() {
    find_end();
    for (const Host& host : inventory_.hosts)
      add_gpus(host);
    for (const auto& [task, attempt] : in_order())
      add_attempt(task, attempt);
    for (auto& [key, row] : rows_) {
      for (const TimelineBar& bar : row.bars)
        row.busy += bar.height * (bar.ended - bar.began);
      row.busy = timeline_.end > 0 ? std::min(1.0, row.busy / timeline_.end) : 0;
      timeline_.rows.push_back(std::move(row));
    }
    return std::move(timeline_);
  }

 private:
  // Rows are sorted by their host's number, GPUs before CPUs, index, and MIG instance.
  using Key = std::tuple<size_t, bool, int, std::string>;
  using Place = std::pair<size_t, size_t>;  // task, attempt

  const TaskAttempt& at(const Place& place) const {
    return results_[place.first].attempts[place.second];
  }

  void find_end() {
    for (const TaskResult& result : results_) {
      for (const TaskAttempt& attempt : result.attempts)
        timeline_.end = std::max({timeline_.end, attempt.began, attempt.ended.value_or(0)});
    }
  }

  std::vector<Place> in_order() const {
    std::vector<Place> places;
    for (const size_t task : indices_of(results_)) {
      for (const size_t i : indices_of(results_[task].attempts))
        places.emplace_back(task, i);
    }
    std::ranges::stable_sort(
        places, [&](const Place& a, const Place& b) { return at(a).began < at(b).began; });
    return places;
  }

  // Hosts are numbered in the order in which they are met, those of the inventory first.
  size_t number_of(const std::string& host) {
    return hosts_.try_emplace(host, hosts_.size()).first->second;
  }

  // GPUs that ran nothing have rows too.
  void add_gpus(const Host& host) {
    const size_t number = number_of(host.name);
    for (const Gpu& gpu : host.gpus) {
      const auto label = cat("GPU ", gpu.index.value);
      models_[{number, gpu.index.value}] = gpu.model;
      if (gpu.mig_enabled)
        continue;  // its instances have rows where they ran something
      rows_[{number, false, gpu.index.value, ""}] = {
          .host = host.name, .label = label, .detail = gpu.model, .is_gpu = true};
    }
  }

  // An attempt has a bar on each of its GPUs, or one on the CPU.
  void add_attempt(size_t task, size_t number) {
    const TaskAttempt& attempt = results_[task].attempts[number];
    TimelineBar bar{.task = task, .attempt = number, .began = attempt.began};
    bar.ended = std::max(attempt.began, attempt.ended.value_or(timeline_.end));
    if (attempt.gpu_indices.empty())
      return add_to_cpu(attempt, bar);
    bar.height = std::clamp(attempt.gpu_fraction, 0.0, 1.0);
    for (const size_t i : indices_of(attempt.gpu_indices)) {
      std::string mig = i < attempt.devices.size() ? attempt.devices[i] : "";
      if (!mig.starts_with("MIG-"))
        mig.clear();
      add_to_gpu(attempt.host, attempt.gpu_indices[i], mig, bar);
    }
  }

  // GPUs that the inventory has not get their row when they are first met.
  void add_to_gpu(const std::string& host, int index, const std::string& mig, TimelineBar bar) {
    const size_t number = number_of(host);
    TimelineRow& row = rows_[{number, false, index, mig}];
    if (row.label.empty()) {
      row = {.host = host, .label = cat("GPU ", index), .is_gpu = true};
      if (!mig.empty())
        row.label += cat(" ", mig.substr(0, kShortUuid));
      row.detail = find_or(models_, std::pair(number, index));
    }
    TimelineBars& open = open_[{number, false, index, mig}];
    std::erase_if(open, [&](const TimelineBar& other) { return other.ended <= bar.began; });
    bar.top = bar.height < 1 ? free_part(open, bar) : 0;
    open.push_back(bar);
    row.bars.push_back(bar);
  }

  static int in_row(double part) { return static_cast<int>(std::lround(part * kWholeRow)); }

  // The top of the highest place in the row where the fewest others are at that time. A window of
  // the bar's height moves down the row, and keeps the sum of what is taken in it.
  static double free_part(const TimelineBars& open, const TimelineBar& bar) {
    Ints taken(kWholeRow, 0);
    for (const TimelineBar& other : open) {
      const int end = std::min(kWholeRow, in_row(other.top + other.height));
      for (int i = in_row(other.top); i < end; ++i)
        ++taken[i];
    }
    const int height = std::max(1, in_row(bar.height));
    int sum = std::accumulate(taken.begin(), taken.begin() + height, 0);
    int best = sum;
    int top = 0;
    for (int i = height; i < kWholeRow; ++i) {
      sum += taken[i] - taken[i - height];
      if (sum >= best)
        continue;
      best = sum;
      top = i - height + 1;
    }
    return 1.0 * top / kWholeRow;
  }

  // Each row of a host's CPUs has one task at a time.
  void add_to_cpu(const TaskAttempt& attempt, const TimelineBar& bar) {
    const size_t number = number_of(attempt.host);
    for (int lane = 0;; ++lane) {
      TimelineRow& row = rows_[{number, true, lane, ""}];
      if (row.label.empty())
        row = {.host = attempt.host, .label = cat("CPU ", lane)};
      if (!row.bars.empty() && row.bars.back().ended > bar.began)
        continue;
      row.bars.push_back(bar);
      return;
    }
  }

  const TaskResults& results_;
  const Inventory& inventory_;
  Timeline timeline_;
  std::map<std::string, size_t> hosts_;
  std::map<std::pair<size_t, int>, std::string> models_;
  std::map<Key, TimelineRow> rows_;
  // The bars of each GPU's row that may not have ended.
  std::map<Key, TimelineBars> open_;
};

}  // namespace

Timeline timeline_of(const TaskResults& results, const Inventory& inventory) {
  return TimelineMaker(results, inventory).make();
}

}  // namespace muster
