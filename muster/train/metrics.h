// Metrics of a training run, accumulated over steps and ranks. Values stay on the device; write()
// copies them all at once and combines the ranks in one exchange.
//
//   muster::Metrics metrics(ctx);
//   … metrics.mean("loss", loss, batch.size());
//   … metrics.accuracy("top1", logits, batch.labels);
//   … metrics.write_every(50, step, {{"lr", schedule.lr()}});
//   // A run that stops between two lines loses none of their numbers:
//   checkpoints.add("metrics", metrics);
//
// Rank 0 writes `metrics.jsonl` (and, if asked, TensorBoard's event file); every rank gets the
// numbers. If ranks have activity files, each line also shows where the time since the previous
// line went, over all ranks: "time/compute", "time/communication" and so on (trace/category.h).
// These add up to 1 and are only written, not returned.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/saved_state.h"
#include "muster/checkpoint/training/resumed_training.h"
#include "muster/comm/process_group.h"
#include "muster/train/metrics_writer.h"
#include "muster/train/step_times.h"
#include "muster/train/tensorboard.h"

namespace muster {

// The values in the order of first use.
class MetricValues {
 public:
  using Pairs = std::vector<std::pair<std::string, double>>;
  explicit MetricValues(Pairs values) : values_(std::move(values)) {}

  bool contains(const std::string& name) const;
  // Throws: invalid_argument, listing the known names.
  double operator[](const std::string& name) const;
  Pairs::const_iterator begin() const { return values_.begin(); }
  Pairs::const_iterator end() const { return values_.end(); }
  size_t size() const { return values_.size(); }

 private:
  Pairs values_;
};

struct MetricsOptions {
  std::string folder{};      // rank 0 makes it. Default: the job's; without one, no file is written
  bool tensorboard = false;  // also write an event file
};

class Metrics {
 public:
  // The folder is one process's at a time, while it has a Metrics for it. Blocking: on rank 0, some
  // seconds, while another process has the folder. Throws: on rank 0, io, and failed_precondition
  // naming the other process.
  Metrics(ProcessGroup group, const MetricsOptions& options);
  // Uses the group and the folder of a muster::Context.
  template <class Context>
    requires requires(Context& ctx) { ctx.process_group(), ctx.run_dir(); }
  explicit Metrics(Context& ctx, const MetricsOptions& options = {})
      : Metrics(ctx.process_group(), with_defaults_of(ctx, options)) {}

  // Adds `value`, a mean over `count` samples; if it has several elements, each is a value with
  // that weight, such as 1 for the losses of single samples. Without samples nothing is added,
  // whatever the value. Adding never blocks. Throws: invalid_argument if the name is used for
  // another kind of metric, and for a negative count.
  void mean(const std::string& name, const at::Tensor& value, double count);
  void mean(const std::string& name, double value, double count);
  void sum(const std::string& name, const at::Tensor& value);
  void sum(const std::string& name, double value);
  void max(const std::string& name, const at::Tensor& value);
  void max(const std::string& name, double value);
  void min(const std::string& name, const at::Tensor& value);
  void min(const std::string& name, double value);
  // Adds the fraction of labels among the k likeliest classes. Labels of `ignore_index` do not
  // count (cross_entropy_loss has -100). Shapes: logits […, classes], labels […]. Blocking: for the
  // GPU, with ignore_index.
  void accuracy(const std::string& name,
                const at::Tensor& logits,
                const at::Tensor& labels,
                int64_t k = 1,
                std::optional<int64_t> ignore_index = {});

  // Returns what was added since the last call, over all ranks, and starts anew. `extra` are rank
  // 0's own numbers, which come first in the line. A NaN on one rank makes the result NaN.
  // Collective: yes.
  // Blocking: for the device and the ranks.
  // If rank 0's file cannot be written, it warns and the training goes on. In a training that
  // Checkpoints has restored, the lines of steps that are taken again are moved aside first
  // (MetricsWriter::continue_after), and rank 0 logs how many: those after the last line before the
  // save if the metrics were added to it, otherwise those from `step` on. Throws: invalid_argument,
  // on every rank, if their names differ; and for an extra number whose name is "step", a metric's,
  // or that of a share of the time.
  MetricValues write(int64_t step, const MetricValues::Pairs& extra = {});
  // Writes at every n-th step; otherwise returns nothing. Called again for that step, as for each
  // batch of a step of several, it writes a second line, and rank 0 warns once.
  std::optional<MetricValues> write_every(int64_t n,
                                          int64_t step,
                                          const MetricValues::Pairs& extra = {});

  // The state is what all ranks have added since the last write; rank 0 takes it back, on any
  // number of ranks. For Checkpoints. Collective: state() is. Blocking: state(), as write().
  // Throws: state(), as write().
  SavedState state();
  void load_state(const SavedState& state);
  // Checkpoints::restore() says how the training begins, after load_state() if there is a saved
  // state.
  void begin(Beginning beginning);

  // Does what MetricsWriter's does, also for the event file. Call it on all ranks or on rank 0.
  int64_t continue_after(int64_t step);

 private:
  template <class Context>
  static MetricsOptions with_defaults_of(Context& ctx, MetricsOptions options) {
    if (options.folder.empty())
      options.folder = ctx.run_dir();
    return options;
  }

  enum class Kind { mean, sum, max, min };
  // Partly on the device, partly in host memory; `count` is the number of values added.
  struct Entry {
    Kind kind;
    at::Tensor on_device;
    double on_host;
    double count = 0;
    at::Tensor count_on_device{};  // more samples, where a device has counted them
  };

  // A value over all ranks.
  struct Total {
    double value;
    double count;
  };

  Entry& entry(const std::string& name, Kind kind);
  void add(const std::string& name, Kind kind, const at::Tensor& value, double count);
  void add(const std::string& name, Kind kind, double value, double count);
  void fetch();
  std::string signature() const;
  std::string message();
  void check_names(const std::vector<std::string>& messages) const;
  std::map<std::string, Total> totals(const std::vector<std::string>& messages) const;
  void clear();
  void append(int64_t step, MetricValues::Pairs line);
  void make_room(int64_t step);
  void warn_of_second_line(int64_t step, const MetricValues& values);
  void check_extra(const MetricValues::Pairs& extra) const;
  MetricValues::Pairs time_shares(const std::vector<std::string>& messages) const;
  static const char* name_of(Kind kind);
  static Kind kind_named(const std::string& name);
  static double nothing(Kind kind);
  static double combined(Kind kind, double a, double b);

  ProcessGroup group_;
  std::string path_;  // of the file that rank 0 writes, known to every rank; empty: none
  MetricsWriter writer_;
  int64_t last_in_state_ = -1;  // last_written() as it was loaded
  std::unique_ptr<EventFile> events_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> order_;
  StepTimes times_;
  size_t lost_ = 0;  // lines since the last that could be written
  // Of the last write_every: its step, and what it wrote last.
  std::optional<int64_t> asked_step_;
  std::vector<std::string> written_names_;
  bool has_warned_of_second_line_ = false;
};

}  // namespace muster
