// Values are added on the device where they are, in double, and never waited for. A write copies
// all of them to the host at once, sends them to all ranks as one message, and each rank adds them
// up in the order of the ranks, so that all get the same bits.
#include "muster/train/metrics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <mutex>
#include <system_error>

#include "muster/base/byte_reader.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/trace/category.h"
#include "muster/train/device_copy.h"
#include "muster/train/metric.h"
#include "muster/train/metrics_lines.h"

namespace muster {

namespace {

constexpr auto kWritten = "written";  // the last line's number, in the saved state
constexpr auto kTimeShares = "time/";

// All mistakes of callers are told in the same way.
template <class... Parts>
[[noreturn]] void refuse_metric(const Parts&... parts) {
  throw invalid_argument("metrics: expected ", parts...);
}

// The path, in a folder that is there.
std::string in_folder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty())
    std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::io,
                "metrics: cannot make the folder '",
                folder.string(),
                "': ",
                error.message());
  return path;
}

// "time/compute": the name of a category's share of the time.
std::string share_name(size_t category) {
  return cat(kTimeShares, to_string(static_cast<Category>(category)));
}

bool is_time_share(const std::string& name) {
  return contains(indices_below(std::tuple_size_v<CategorySeconds>), name, share_name);
}

// Throws: invalid_argument for a count that is none.
void check_count(const std::string& name, double count) {
  if (count >= 0 && std::isfinite(count))
    return;
  refuse_metric("a count of 0 samples or more for '",
                name,
                "', got ",
                count,
                "; pass the number of samples that the mean is over");
}

Tensor in_double(const Tensor& value) {
  return value.detach().to(kDouble);
}

// The names at the beginning of a message, up to a zero byte.
std::string names_in(const std::string& message) {
  return message.substr(0, message.find('\0'));
}

}  // namespace

bool MetricValues::contains(const std::string& name) const {
  return any_of(values_, [&](const auto& value) { return value.first == name; });
}

double MetricValues::operator[](const std::string& name) const {
  Strings names;
  for (const auto& [known, value] : values_) {
    if (known == name)
      return value;
    names.push_back(known);
  }
  refuse_metric("one of ", join(names, ", "), ", got '", name, "'; add to it before it is written");
}

// Every rank knows the path, since every rank is asked for the last line at a save.
Metrics::Metrics(ProcessGroup group, const MetricsOptions& options)
    : group_(std::move(group)),
      path_(options.folder.empty() ? "" : options.folder + "/metrics.jsonl"),
      writer_(group_.rank() == 0 ? in_folder(path_) : "") {
  if (group_.rank() == 0 && !options.folder.empty() && options.tensorboard)
    events_ = std::make_unique<EventFile>(options.folder);
}

const char* Metrics::name_of(Kind kind) {
  constexpr std::pair<Kind, const char*> kNames[] = {
      {Kind::mean, "mean"}, {Kind::sum, "sum"}, {Kind::max, "max"}, {Kind::min, "min"}};
  return lookup(kNames, kind, "?");
}

// The value that changes no other when it is combined with it.
double Metrics::nothing(Kind kind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::pair<Kind, double> kNothing[] = {{Kind::max, -kInfinity}, {Kind::min, kInfinity}};
  return lookup(kNothing, kind, 0);
}

// std::max and std::min would lose a NaN on one side.
double Metrics::combined(Kind kind, double a, double b) {
  if (kind == Kind::mean || kind == Kind::sum)
    return a + b;
  if (std::isnan(a) || std::isnan(b))
    return std::numeric_limits<double>::quiet_NaN();
  return kind == Kind::max ? std::max(a, b) : std::min(a, b);
}

// Makes the entry at its first use. Names go into a line of JSON and into messages, so they must be
// printable.
Metrics::Entry& Metrics::entry(const std::string& name, Kind kind) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) {
    if (found->second.kind == kind)
      return found->second;
    refuse_metric("'",
                  name,
                  "' to be a ",
                  name_of(found->second.kind),
                  " as before, got a ",
                  name_of(kind),
                  "; give them different names");
  }
  const bool is_printable = !name.empty() && printable(name) == name;
  if (!is_printable || name == "step" || is_time_share(name)) {
    refuse_metric(
        "a name of printable characters that is not 'step' or that of a share of the "
        "time, got '",
        printable(name),
        "'; choose another");
  }
  order_.push_back(name);
  return entries_[name] = {.kind = kind, .on_device = {}, .on_host = nothing(kind)};
}

// Numbers of the host stay there.
void Metrics::add(const std::string& name, Kind kind, double value, double count) {
  Entry& into = entry(name, kind);
  into.on_host = combined(kind, into.on_host, value);
  into.count += count;
}

// `value` is a scalar of type double.
void Metrics::add(const std::string& name, Kind kind, const Tensor& value, double count) {
  Entry& into = entry(name, kind);
  into.count += count;
  if (!into.on_device.defined()) {
    into.on_device = value.clone();
    return;
  }
  const Tensor here = copied_to(into.on_device.device(), value);
  if (kind == Kind::max) {
    into.on_device = at::maximum(into.on_device, here);
  } else if (kind == Kind::min) {
    into.on_device = at::minimum(into.on_device, here);
  } else {
    into.on_device += here;
  }
}

// A mean over no samples is NaN, so it must not be multiplied by 0.
void Metrics::mean(const std::string& name, const Tensor& value, double count) {
  check_count(name, count);
  if (count == 0 || value.numel() == 0)
    return add(name, Kind::mean, 0, 0);
  const NoGradGuard no_grad;
  add(name, Kind::mean, in_double(value).sum() * count, count * as_number(value.numel()));
}

void Metrics::mean(const std::string& name, double value, double count) {
  check_count(name, count);
  if (count == 0)
    return add(name, Kind::mean, 0, 0);
  add(name, Kind::mean, value * count, count);
}

void Metrics::sum(const std::string& name, const Tensor& value) {
  const NoGradGuard no_grad;
  add(name, Kind::sum, in_double(value).sum(), 1);
}

void Metrics::sum(const std::string& name, double value) {
  add(name, Kind::sum, value, 1);
}

void Metrics::max(const std::string& name, const Tensor& value) {
  if (value.numel() == 0)
    return add(name, Kind::max, nothing(Kind::max), 0);
  const NoGradGuard no_grad;
  add(name, Kind::max, in_double(value).max(), 1);
}

void Metrics::max(const std::string& name, double value) {
  add(name, Kind::max, value, 1);
}

void Metrics::min(const std::string& name, const Tensor& value) {
  if (value.numel() == 0)
    return add(name, Kind::min, nothing(Kind::min), 0);
  const NoGradGuard no_grad;
  add(name, Kind::min, in_double(value).min(), 1);
}

void Metrics::min(const std::string& name, double value) {
  add(name, Kind::min, value, 1);
}

void Metrics::accuracy(const std::string& name,
                       const Tensor& logits,
                       const Tensor& labels,
                       int64_t k,
                       std::optional<int64_t> ignore_index) {
  const NoGradGuard no_grad;
  const Tensor hits = label_hits(cat("metrics: '", name, "'"), logits, labels, k);
  if (!ignore_index)
    return add(name, Kind::mean, hits.sum().to(kDouble), as_number(labels.numel()));
  const Tensor counts = labels.ne(*ignore_index);
  add(name, Kind::mean, hits.logical_and(counts).sum().to(kDouble), 0);
  Tensor& count = entries_.at(name).count_on_device;
  const Tensor more = counts.sum().to(kDouble);
  count = count.defined() ? count + copied_to(count.device(), more) : more;
}

// Brings what is on devices to the host, with one copy for each device.
void Metrics::fetch() {
  std::map<std::string, std::vector<Entry*>> by_device;
  for (auto& [name, entry] : entries_) {
    if (entry.on_device.defined())
      by_device[entry.on_device.device().str()].push_back(&entry);
  }
  for (const auto& [device, entries] : by_device) {
    Tensors scalars;
    for (const Entry* entry : entries) {
      const Tensor& count = entry->count_on_device;
      scalars.push_back(entry->on_device);
      scalars.push_back(count.defined() ? copied_to(entry->on_device.device(), count)
                                        : at::zeros_like(entry->on_device));
    }
    const Tensor all = at::stack(scalars).cpu();
    const double* value = all.const_data_ptr<double>();
    for (Entry* entry : entries) {
      entry->on_host = combined(entry->kind, entry->on_host, *value++);
      entry->count += *value++;
      entry->on_device.reset();
      entry->count_on_device.reset();
    }
  }
}

// Returns "max grad_norm, mean loss", in the order of names: ranks may have met them in another
// one.
std::string Metrics::signature() const {
  return join(
      mapped(entries_,
             [](const auto& item) { return cat(name_of(item.second.kind), " ", item.first); }),
      ", ");
}

// Returns what this rank tells the others: the signature, a zero byte, two numbers for each entry,
// and the seconds of each category.
std::string Metrics::message() {
  std::string bytes = signature();
  bytes += '\0';
  const auto append = [&](double number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const auto& [name, entry] : entries_) {
    append(entry.on_host);
    append(entry.count);
  }
  for (const double seconds : times_.since_last())
    append(seconds);
  return bytes;
}

// Returns each category's share of all ranks' time; nothing if no rank has told any.
MetricValues::Pairs Metrics::time_shares(const Strings& messages) const {
  CategorySeconds sums{};
  for (const auto& message : messages) {
    ByteReader reader(message, "metrics of a rank");
    reader.take(message.size() - std::min(message.size(), sizeof(CategorySeconds)));
    const auto seconds = reader.take_value<CategorySeconds>();
    std::ranges::transform(sums, seconds, sums.begin(), std::plus());
  }
  const double all = sum_of(sums);
  MetricValues::Pairs shares;
  if (all <= 0)
    return shares;
  for (const size_t i : indices_of(sums))
    shares.emplace_back(share_name(i), sums[i] / all);
  return shares;
}

// Refuses messages with other names than rank 0's. All ranks see all messages, so all throw or
// none.
void Metrics::check_names(const Strings& messages) const {
  const std::string names = names_in(messages[0]);
  for (int rank = 1; rank < group_.size(); ++rank) {
    if (names_in(messages[rank]) == names)
      continue;
    refuse_metric("the same names on all ranks, got '",
                  names,
                  "' on rank ",
                  group_.job_rank(0),
                  " and '",
                  names_in(messages[rank]),
                  "' on rank ",
                  group_.job_rank(rank),
                  " (rank ",
                  group_.job_rank(),
                  "); add to the same metrics on every rank before they are written");
  }
}

// The values are combined in the order of the ranks, so that all have the same bits.
std::map<std::string, Metrics::Total> Metrics::totals(const Strings& messages) const {
  check_names(messages);
  const size_t names_bytes = names_in(messages[0]).size() + 1;
  std::vector<ByteReader> readers;
  for (const auto& message : messages) {
    readers.emplace_back(message, "metrics of a rank");
    readers.back().take(names_bytes);
  }
  std::map<std::string, Total> totals;
  for (const auto& [name, entry] : entries_) {
    Total total{.value = nothing(entry.kind), .count = 0};
    for (ByteReader& reader : readers) {
      const auto value = reader.take_value<double>();
      const auto count = reader.take_value<double>();
      if (count != 0)
        total.value = combined(entry.kind, total.value, value);
      total.count += count;
    }
    if (total.count != 0)
      totals[name] = total;
  }
  return totals;
}

// The names stay, so that ranks go on agreeing on them when one adds to a metric and another does
// not.
void Metrics::clear() {
  for (auto& [name, entry] : entries_)
    entry = {.kind = entry.kind, .on_device = {}, .on_host = nothing(entry.kind)};
}

// Rank 0 saves what all ranks have added, so that any number of ranks can go on.
SavedState Metrics::state() {
  fetch();
  const auto added = totals(group_.all_gather_bytes(message(), "of metrics"));
  SavedState state;
  state.numbers[kWritten] = as_number(path_.empty() ? -1 : last_written(path_));
  for (const auto& name : order_) {
    if (!added.contains(name))
      continue;
    const auto number = cat(state.texts.size() / 2);
    state.texts["name " + number] = name;
    state.texts["kind " + number] = name_of(entries_.at(name).kind);
    state.numbers["value " + number] = added.at(name).value;
    state.numbers["count " + number] = added.at(name).count;
  }
  return state;
}

// A state may come from a file, which can name another kind.
Metrics::Kind Metrics::kind_named(const std::string& name) {
  for (const Kind kind : {Kind::mean, Kind::sum, Kind::max, Kind::min})
    if (name == name_of(kind))
      return kind;
  refuse_metric("a mean, sum, max or min in the saved state, got a '", printable(name), "'");
}

void Metrics::load_state(const SavedState& state) {
  clear();
  last_in_state_ = static_cast<int64_t>(find_or(state.numbers, kWritten, -1));
  for (const size_t i : indices_below(state.texts.size() / 2)) {
    const auto number = cat(i);
    const std::string& kind = state.text("metrics", "kind " + number);
    Entry& into = entry(state.text("metrics", "name " + number), kind_named(kind));
    if (group_.rank() != 0)
      continue;  // the value is that of all ranks together
    into.on_host = state.number("metrics", "value " + number);
    into.count = state.number("metrics", "count " + number);
  }
}

// A training that writes no file has no lines to make room for.
void Metrics::begin(Beginning beginning) {
  if (!path_.empty())
    note_beginning(path_, beginning, last_in_state_);
}

// Moves lines aside that are of steps which the training takes again.
void Metrics::make_room(int64_t step) {
  const auto after = cut_due(path_, step);
  if (!after)
    return;
  const int64_t moved = continue_after(*after);
  note_cut(path_);
  if (moved == 0)
    return;
  log_info("metrics: ",
           plural(moved, "line"),
           " after ",
           *after,
           " moved to '",
           path_,
           ".replaced', as the training takes these steps again");
}

// Refuses names that the line has already: a reader would take the second number for the first.
void Metrics::check_extra(const MetricValues::Pairs& extra) const {
  for (const auto& [name, value] : extra) {
    if (name != "step" && !entries_.contains(name) && !is_time_share(name))
      continue;
    refuse_metric("extra numbers with names of their own, got '",
                  printable(name),
                  "', which the line has already; choose another");
  }
}

// A full disk costs lines, not the training: the failure is told once, and the number of lost lines
// later.
void Metrics::append(int64_t step, MetricValues::Pairs line) {
  if (!path_.empty())
    note_written(path_, step);
  if (!writer_.is_open())
    return;
  try {
    make_room(step);
    if (events_)
      events_->write(step, line);
    line.insert(line.begin(), {"step", as_number(step)});
    writer_.write_line(line);
  } catch (const Error& error) {
    if (lost_++ == 0)
      log_warning(error.message(),
                  "; training goes on, and metrics are lost until they can be written again");
    return;
  }
  if (lost_ > 0)
    log_warning("metrics: written again; ", plural(lost_, "line"), " were lost");
  lost_ = 0;
}

namespace {

// Takes the step off the end of each rank's message. Where ranks are at different ones, rank 0 says
// so once: the line has means over both.
void take_steps(Strings& messages, int64_t step, bool is_main) {
  static std::once_flag told;
  for (const size_t rank : indices_of(messages)) {
    std::string& message = messages[rank];
    int64_t theirs = 0;
    std::memcpy(&theirs, message.data() + message.size() - sizeof(theirs), sizeof(theirs));
    message.resize(message.size() - sizeof(theirs));
    if (is_main && theirs != step)
      std::call_once(told, [&] {
        log_warning("metrics: expected all ranks at one step, got ",
                    step,
                    " on rank 0 and ",
                    theirs,
                    " on rank ",
                    rank,
                    "; the line has the means over both: write on every rank in the same steps");
      });
  }
}

}  // namespace

// Every rank takes part in the exchange and gets the numbers; rank 0 alone writes.
MetricValues Metrics::write(int64_t step, const MetricValues::Pairs& extra) {
  check_extra(extra);
  fetch();
  const std::string own(reinterpret_cast<const char*>(&step), sizeof(step));
  auto messages = group_.all_gather_bytes(message() + own, "of metrics");
  take_steps(messages, step, group_.rank() == 0);
  const auto added = totals(messages);
  MetricValues::Pairs values;
  for (const auto& name : order_) {
    const Total* const found = value_at(added, name);
    if (found == nullptr)
      continue;
    const auto& [value, count] = *found;
    values.emplace_back(name, entries_.at(name).kind == Kind::mean ? value / count : value);
  }
  MetricValues::Pairs line = extra;
  append_all(line, values);
  append_all(line, time_shares(messages));
  append(step, std::move(line));
  clear();
  return MetricValues(std::move(values));
}

std::optional<MetricValues> Metrics::write_every(int64_t n,
                                                 int64_t step,
                                                 const MetricValues::Pairs& extra) {
  if (n < 1)
    refuse_metric("to write every step or less often, got every ", n, "; pass 1 or more");
  std::optional<MetricValues> values;
  if (step % n == 0) {
    values = write(step, extra);
    warn_of_second_line(step, *values);
  }
  asked_step_ = step;
  return values;
}

// The line of a step that is not over has the numbers of some of its batches only. A program may
// write the numbers of a step at several places: their names differ.
void Metrics::warn_of_second_line(int64_t step, const MetricValues& values) {
  Strings names = mapped(values, [](const auto& item) { return std::string(item.first); });
  const bool is_second = asked_step_ == step && !names.empty() && names == written_names_;
  written_names_ = std::move(names);
  if (!is_second || std::exchange(has_warned_of_second_line_, true) || group_.rank() != 0)
    return;
  log_warning(
      "metrics: expected write_every once a step, got step ",
      step,
      " again, so that it has two lines; call it after the step's last batch: if (!batch.last) "
      "continue;");
}

// TensorBoard hides what is later; the lines of the other file are moved.
int64_t Metrics::continue_after(int64_t step) {
  if (events_)
    events_->continue_after(step);
  return writer_.continue_after(step);
}

}  // namespace muster
