// How it works: the bytes of a file (steady_copy.h) become values. Each may be anything, as
// somebody else may have written the file.
#include "muster/trace/read_activity.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <ranges>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/host_identity.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/activity_times.h"
#include "muster/trace/call_text.h"
#include "muster/trace/hosts_folder.h"
#include "muster/trace/steady_copy.h"

namespace muster {

namespace {

template <size_t kSize>
std::string text_of(const char (&field)[kSize]) {
  return readable(text_in(field));
}

// The value as an int that is not below 0, as the kernel's numbers of threads and signals are.
int int_of(uint32_t value) {
  return static_cast<int>(value & INT32_MAX);
}

// A number that is no category counts as other time.
Category category_of(uint32_t value) {
  return value < kActivityCategories ? static_cast<Category>(value) : Category::other;
}

// Returns a record of the array at `offset`. It is a copy, as the bytes need not be aligned.
template <class Record>
Record record_at(const std::string& bytes, size_t offset, size_t index = 0) {
  Record record;
  std::memcpy(&record, bytes.data() + offset + index * sizeof(record), sizeof(record));
  return record;
}

[[noreturn]] void refuse_file(const std::string& name,
                              const std::string& expected,
                              const std::string& got) {
  throw invalid_argument("activity file '",
                         name,
                         "': expected ",
                         expected,
                         ", got ",
                         got,
                         "; name one of RUN_DIR/activity that this version of muster has written");
}

// Throws unless the bytes have an activity file's size, version and sensible ranks.
void check_file(const std::string& bytes, const std::string& name) {
  if (bytes.size() != sizeof(ActivityLayout))
    refuse_file(name, cat(sizeof(ActivityLayout), " bytes"), cat(bytes.size()));
  const auto header = record_at<ActivityHeader>(bytes, 0);
  if (std::memcmp(header.magic, kActivityMagic, sizeof(kActivityMagic)) != 0)
    refuse_file(name, "to begin with 'mustract'", "something else");
  if (header.version != kActivityVersion || header.bytes != sizeof(ActivityLayout))
    refuse_file(name, cat("version ", kActivityVersion), cat("version ", header.version));
  const bool is_rank = header.rank >= 0 && header.rank < header.world_size;
  if (!is_rank || header.attempt < 0)
    refuse_file(name,
                "a rank below its world size",
                cat("rank ", header.rank, " of ", header.world_size, ", attempt ", header.attempt));
}

// Returns nothing for a record that is nobody's, in no span or being written.
std::optional<ThreadView> thread_view(const ActivityThread& record) {
  const bool is_owned = record.owner != 0 && record.owner <= INT32_MAX;
  const bool is_whole = record.head == record.tail;
  if (!is_owned || !is_whole || record.depth == 0)
    return std::nullopt;
  ThreadView view{.thread = int_of(record.owner), .name = text_of(record.name), .spans = {}};
  const size_t named = std::min<size_t>(record.depth, kActivityDepth);
  for (size_t i = 0; i < named; ++i) {
    const ActivitySpan& span = record.spans[i];
    const bool inherits = span.category == kActivityCategories && i > 0;
    const Category category = inherits ? view.spans.back().category : category_of(span.category);
    view.spans.push_back(
        {.name = text_of(span.name), .category = category, .begin_ns = span.begin_ns});
  }
  view.deeper = int_of(std::min<uint32_t>(record.depth - named, INT32_MAX));
  return view;
}

// Returns nothing for a place that was never used, or whose record is being written. The rank says
// an end in two words, of which a copy may have one alone: then the call is still under way.
std::optional<CallView> call_view(const ActivityCall& record, size_t place) {
  const bool is_whole = record.head != 0 && record.head == record.tail;
  if (!is_whole || (record.head - 1) % kActivityCalls != place)
    return std::nullopt;
  CallView view{.number = record.head,
                .group = text_of(record.group),
                .operation = text_of(record.operation),
                .sequence = record.sequence,
                .what = text_of(record.what),
                .bytes = record.bytes,
                .peer = record.peer,
                .tag = record.tag,
                .thread = int_of(record.thread),
                .begin_ns = record.begin_ns};
  const CallState state{record.state};  // which may be none of them
  if (record.end_ns == 0 || state == CallState::under_way)
    return view;
  view.end_ns = record.end_ns;
  view.state = state == CallState::failed ? state : CallState::ended;
  return view;
}

// The main thread comes first, and the others stay in their order.
void read_threads(const std::string& bytes, ActivityView& view) {
  view.threads = mapped_some(std::views::iota(size_t{0}, kActivityThreads), [&](size_t i) {
    return thread_view(record_at<ActivityThread>(bytes, offsetof(ActivityLayout, threads), i));
  });
  std::ranges::stable_partition(
      view.threads, [&](const ThreadView& thread) { return thread.thread == view.main_thread; });
}

// The ring begins anywhere, so the calls are sorted by their numbers.
void read_calls(const std::string& bytes, ActivityView& view) {
  view.calls = mapped_some(std::views::iota(size_t{0}, kActivityCalls), [&](size_t i) {
    return call_view(record_at<ActivityCall>(bytes, offsetof(ActivityLayout, ring), i), i);
  });
  std::ranges::sort(view.calls, {}, &CallView::number);
}

// Returns the number that a file's or folder's whole name is, or nothing.
std::optional<int> number_of(const std::filesystem::path& path) {
  const auto value = parse_count(file_name(path));
  const bool is_whole_name = value && cat(*value) == path.filename();
  return is_whole_name ? value : std::nullopt;
}

// Other names, such as those of stacks, are left out.
Ints numbers_in(const std::filesystem::path& folder) {
  Ints numbers = mapped_some(paths_in(folder), [&](const auto& path) { return number_of(path); });
  std::ranges::sort(numbers);
  return numbers;
}

// The last attempt that a rank has left a file of.
std::optional<int> last_attempt_in(const std::filesystem::path& folder) {
  Ints attempts = numbers_in(folder);
  while (!attempts.empty() && numbers_in(folder / cat(attempts.back())).empty())
    attempts.pop_back();
  return attempts.empty() ? std::nullopt : std::optional<int>(attempts.back());
}

}  // namespace

std::string ThreadView::span_names() const {
  Strings names = mapped(spans, &SpanView::name);
  return join(names, " > ");
}

std::string CallView::text() const {
  const std::string with_what = what.empty() ? "" : cat(" ", what);
  if (peer < 0)
    return cat(operation, " #", sequence, with_what);
  const char* const direction = operation.starts_with("recv") ? " from " : " to ";
  return cat(operation, direction, peer, tag == 0 ? "" : cat(" tag ", tag), with_what);
}

const ThreadView* ActivityView::main() const {
  return !threads.empty() && threads.front().thread == main_thread ? &threads.front() : nullptr;
}

// A file may say anything, and sums of its numbers are none to trust either: they wrap.
std::array<int64_t, kActivityCategories> ActivityView::totals_at(int64_t now_ns) const {
  auto totals = totals_ns;
  int64_t& total = totals[index_of(category)];
  if (now_ns > category_since_ns)
    total = time_sum(total, time_difference(now_ns, category_since_ns));
  return totals;
}

std::string activity_host_name() {
  return readable(own_host_name().substr(0, sizeof(ActivityHeader::host) - 1));
}

ActivityView parse_activity(const std::string& bytes, const std::string& name) {
  check_file(bytes, name);
  auto header = record_at<ActivityHeader>(bytes, 0);
  const ActivityTimes times = ActivityTimes::in(header);
  ActivityView view{.rank = header.rank,
                    .world_size = header.world_size,
                    .attempt = header.attempt,
                    .pid = header.pid,
                    .pid_namespace = header.pid_namespace,
                    .start_ticks = header.start_ticks,
                    .stack_signal = int_of(header.stack_signal),
                    .host = text_of(header.host),
                    .device = text_of(header.device),
                    .libtorch = text_of(header.libtorch),
                    .backend = text_of(header.backend),
                    .device_name = text_of(header.device_name),
                    .unix_minus_monotonic_ns = header.unix_minus_monotonic_ns,
                    .opened_ns = header.opened_ns,
                    .step = header.step,
                    .step_ns = header.step_ns,
                    .steps = header.steps,
                    .samples = header.samples,
                    .category = category_of(times.category),
                    .category_since_ns = times.since_ns,
                    .totals_ns = times.totals_ns,
                    .main_thread = int_of(header.main_thread),
                    .threads = {},
                    .num_calls = header.calls,
                    .calls = {}};
  if (header.closed_ns != 0)
    view.closed_ns = header.closed_ns;
  const bool is_told =
      !std::isnan(header.loss) || std::bit_cast<uint64_t>(header.loss) == kLossIsNan;
  if (is_told)
    view.loss = header.loss;
  read_threads(bytes, view);
  read_calls(bytes, view);
  return view;
}

// Everything that a rank does leaves a time somewhere.
int64_t ActivityView::last_sign_ns() const {
  if (closed_ns)
    return *closed_ns;
  int64_t last = std::max({opened_ns, step_ns, category_since_ns});
  for (const CallView& call : calls)
    last = std::max({last, call.begin_ns, call.end_ns.value_or(0)});
  for (const ThreadView& thread : threads) {
    for (const SpanView& span : thread.spans)
      last = std::max(last, span.begin_ns);
  }
  return last;
}

ActivityView read_activity(const std::string& path) {
  return parse_activity(steady_copy(path), path);
}

// A rank's own file comes before a copy of it.
std::vector<ActivityFile> activity_files(const std::string& run_dir, std::optional<int> attempt) {
  const std::filesystem::path own = std::filesystem::path(run_dir) / "activity";
  const std::filesystem::path copies = hosts_folder(run_dir);
  if (!attempt)
    attempt = last_attempt_in(own);
  if (!attempt)
    attempt = last_attempt_in(copies);
  if (!attempt)
    return {};
  std::map<int, ActivityFile> files;
  for (const auto& folder : {own / cat(*attempt), copies / cat(*attempt)}) {
    for (const int rank : numbers_in(folder))
      files.try_emplace(
          rank,
          ActivityFile{.attempt = *attempt, .rank = rank, .path = (folder / cat(rank)).string()});
  }
  const auto by_rank = std::views::values(files);
  return {by_rank.begin(), by_rank.end()};
}

ActivityViews readable_activity(const std::string& run_dir, std::optional<int> attempt) {
  ActivityViews views;
  for (const ActivityFile& file : activity_files(run_dir, attempt)) {
    try {
      views.push_back(read_activity(file.path));
    } catch (const Error&) {
      continue;
    }
  }
  return views;
}

}  // namespace muster
