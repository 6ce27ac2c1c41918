#include "muster/trace/read_activity.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/call_text.h"
#include "muster/trace/hosts_folder.h"

namespace muster {

namespace {

template <size_t kSize>
std::string text_of(const char (&field)[kSize]) {
  return readable(std::string_view(field, ::strnlen(field, kSize)));
}

Category category_of(uint32_t value) {
  return value < kActivityCategories ? static_cast<Category>(value) : Category::other;
}

template <class Record>
Record record_at(const std::string& bytes, size_t offset) {
  Record record;
  std::memcpy(&record, bytes.data() + offset, sizeof(record));
  return record;
}

[[noreturn]] void refuse_file(const std::string& name,
                              const std::string& expected,
                              const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              cat("activity file '",
                  name,
                  "': expected ",
                  expected,
                  ", got ",
                  got,
                  "; name one of RUN_DIR/activity that this version of muster has written"));
}

void check_file(const std::string& bytes, const std::string& name) {
  if (bytes.size() != sizeof(ActivityLayout))
    refuse_file(name, cat(sizeof(ActivityLayout), " bytes"), cat(bytes.size()));
  const auto header = record_at<ActivityHeader>(bytes, 0);
  if (std::memcmp(header.magic, kActivityMagic, sizeof(kActivityMagic)) != 0)
    refuse_file(name, "to begin with 'mustract'", "something else");
  if (header.version != kActivityVersion || header.bytes != sizeof(ActivityLayout))
    refuse_file(name, cat("version ", kActivityVersion), cat("version ", header.version));
  if (header.world_size < 1 || header.rank < 0 || header.rank >= header.world_size ||
      header.attempt < 0)
    refuse_file(name,
                "a rank below its world size",
                cat("rank ", header.rank, " of ", header.world_size, ", attempt ", header.attempt));
}

std::optional<ThreadView> thread_view(const ActivityThread& record) {
  if (record.owner == 0 || record.owner > INT32_MAX || record.head != record.tail ||
      record.depth == 0)
    return std::nullopt;
  ThreadView view{
      .thread = static_cast<int>(record.owner), .name = text_of(record.name), .spans = {}};
  const size_t named = std::min<size_t>(record.depth, kActivityDepth);
  for (size_t i = 0; i < named; ++i) {
    const ActivitySpan& span = record.spans[i];
    const bool inherits = span.category == kActivityCategories && i > 0;
    const Category category = inherits ? view.spans.back().category : category_of(span.category);
    view.spans.push_back(
        {.name = text_of(span.name), .category = category, .begin_ns = span.begin_ns});
  }
  view.deeper = static_cast<int>(std::min<size_t>(record.depth - named, INT32_MAX));
  return view;
}

// Of what is being written now there is no record yet.
std::optional<CallView> call_view(const ActivityCall& record, size_t place) {
  const bool whole = record.head != 0 && record.head == record.tail;
  if (!whole || (record.head - 1) % kActivityCalls != place)
    return std::nullopt;
  CallView view{.number = record.head,
                .group = text_of(record.group),
                .operation = text_of(record.operation),
                .sequence = record.sequence,
                .what = text_of(record.what),
                .bytes = record.bytes,
                .peer = record.peer,
                .tag = record.tag,
                .thread = static_cast<int>(record.thread & INT32_MAX),
                .begin_ns = record.begin_ns};
  if (record.end_ns == 0)
    return view;
  view.end_ns = record.end_ns;
  view.state = record.state == 2 ? CallView::State::failed : CallView::State::ended;
  return view;
}

void read_threads(const std::string& bytes, ActivityView& view) {
  for (size_t i = 0; i < kActivityThreads; ++i) {
    const size_t at = offsetof(ActivityLayout, threads) + i * sizeof(ActivityThread);
    if (auto thread = thread_view(record_at<ActivityThread>(bytes, at)))
      view.threads.push_back(std::move(*thread));
  }
  std::stable_partition(view.threads.begin(), view.threads.end(), [&](const ThreadView& thread) {
    return thread.thread == view.main_thread;
  });
}

void read_calls(const std::string& bytes, ActivityView& view) {
  for (size_t i = 0; i < kActivityCalls; ++i) {
    const size_t at = offsetof(ActivityLayout, ring) + i * sizeof(ActivityCall);
    if (auto call = call_view(record_at<ActivityCall>(bytes, at), i))
      view.calls.push_back(std::move(*call));
  }
  std::sort(view.calls.begin(), view.calls.end(), [](const CallView& one, const CallView& other) {
    return one.number < other.number;
  });
}

template <class Record>
uint64_t number_at(const std::string& bytes, size_t offset) {
  const auto record = record_at<Record>(bytes, offset);
  return record.head == record.tail ? record.head : 0;
}

template <class Record>
void drop_if_changed(const std::string& before,
                     std::string& bytes,
                     const std::string& after,
                     size_t offset) {
  const uint64_t number = number_at<Record>(before, offset);
  if (number != 0 && number == number_at<Record>(bytes, offset) &&
      number == number_at<Record>(after, offset))
    return;
  bytes.replace(offset, sizeof(Record), sizeof(Record), '\0');
}

void drop_changed(const std::string& before, std::string& bytes, const std::string& after) {
  for (size_t i = 0; i < kActivityThreads; ++i)
    drop_if_changed<ActivityThread>(
        before, bytes, after, offsetof(ActivityLayout, threads) + i * sizeof(ActivityThread));
  for (size_t i = 0; i < kActivityCalls; ++i)
    drop_if_changed<ActivityCall>(
        before, bytes, after, offsetof(ActivityLayout, ring) + i * sizeof(ActivityCall));
}

// The number that a file's or folder's whole name is.
std::optional<int> number_of(const std::filesystem::path& path) {
  const auto value = parse_int(path.filename().string());
  if (!value || *value < 0 || *value > INT32_MAX || cat(*value) != path.filename())
    return std::nullopt;
  return static_cast<int>(*value);
}

std::vector<int> numbers_in(const std::filesystem::path& folder) {
  std::vector<int> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto number = number_of(entry->path()))
      numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The last that a rank has left a file of.
std::optional<int> last_attempt_in(const std::filesystem::path& folder) {
  std::vector<int> attempts = numbers_in(folder);
  while (!attempts.empty() && numbers_in(folder / cat(attempts.back())).empty())
    attempts.pop_back();
  return attempts.empty() ? std::nullopt : std::optional<int>(attempts.back());
}

}  // namespace

std::string CallView::text() const {
  const std::string which = peer < 0 ? cat(" #", sequence)
                                     : cat(operation.starts_with("recv") ? " from " : " to ",
                                           peer,
                                           tag == 0 ? "" : cat(" tag ", tag));
  return cat(operation, which, what.empty() ? "" : " ", what);
}

const ThreadView* ActivityView::main() const {
  return !threads.empty() && threads.front().thread == main_thread ? &threads.front() : nullptr;
}

// What a file says may be anything, and the sums of it are no numbers to trust either: they wrap.
std::array<int64_t, kActivityCategories> ActivityView::totals_at(int64_t now_ns) const {
  auto totals = totals_ns;
  auto& total = totals[static_cast<size_t>(category)];
  const uint64_t since = static_cast<uint64_t>(now_ns) - static_cast<uint64_t>(category_since_ns);
  if (now_ns > category_since_ns)
    total = static_cast<int64_t>(static_cast<uint64_t>(total) + since);
  return totals;
}

ActivityView parse_activity(const std::string& bytes, const std::string& name) {
  check_file(bytes, name);
  const auto header = record_at<ActivityHeader>(bytes, 0);
  ActivityView view{.rank = header.rank,
                    .world_size = header.world_size,
                    .attempt = header.attempt,
                    .pid = header.pid,
                    .pid_namespace = header.pid_namespace,
                    .start_ticks = header.start_ticks,
                    .stack_signal = static_cast<int>(header.stack_signal & INT32_MAX),
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
                    .category = category_of(header.category),
                    .category_since_ns = header.category_since_ns,
                    .main_thread = static_cast<int>(header.main_thread & INT32_MAX),
                    .threads = {},
                    .num_calls = header.calls,
                    .calls = {}};
  if (header.closed_ns != 0)
    view.closed_ns = header.closed_ns;
  const bool is_told =
      !std::isnan(header.loss) || std::bit_cast<uint64_t>(header.loss) == kLossIsNan;
  if (is_told)
    view.loss = header.loss;
  std::copy(std::begin(header.totals_ns), std::end(header.totals_ns), view.totals_ns.begin());
  read_threads(bytes, view);
  read_calls(bytes, view);
  return view;
}

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

// How a copy goes through memory is the machine's affair: so what counts is what was not written to
// from before it until after it.
ActivityView read_activity(const std::string& path) {
  const auto read = [&] {
    return read_plain_file(path, sizeof(ActivityLayout));
  };
  const std::string before = read();
  std::string bytes = read();
  const std::string after = read();
  if (before.size() == sizeof(ActivityLayout) && bytes.size() == before.size() &&
      after.size() == before.size())
    drop_changed(before, bytes, after);
  return parse_activity(bytes, path);
}

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
  std::vector<ActivityFile> by_rank;
  for (auto& [rank, file] : files)
    by_rank.push_back(std::move(file));
  return by_rank;
}

}  // namespace muster
