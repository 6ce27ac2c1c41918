// How it works: two passes over the files. The first finds the earliest event, from which all times
// count; the second writes each event as a line of JSON. Memory stays small whatever the files'
// size: they are read and written in pieces, and texts that come again are quoted once.
#include "muster/trace/merge_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/call_text.h"
#include "muster/trace/category.h"
#include "muster/trace/event_layout.h"
#include "muster/trace/read_activity.h"
#include "muster/trace/whole_events.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr size_t kWrittenAtOnce = size_t{1} << 20;
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

// Texts as JSON has them. There are few different ones, so that each is quoted once.
class QuotedTexts {
 public:
  const std::string& operator()(const std::string& text) {
    if (const std::string* const quoted = value_at(known_, text))
      return *quoted;
    if (known_.size() > 100'000)
      known_.clear();
    return known_.emplace(text, nlohmann::json(readable(text)).dump()).first->second;
  }

 private:
  std::unordered_map<std::string, std::string> known_;
};

// Any file may lie there, so the header is checked before anything of it is used.
bool is_event_header(const EventHeader& header) {
  if (std::memcmp(header.magic, kEventMagic, sizeof(kEventMagic)) != 0)
    return false;
  if (header.version != kEventVersion || header.event_bytes != sizeof(TraceEvent))
    return false;
  return header.rank >= 0 && header.rank < header.world_size;
}

// Reads the file's events in pieces; a file may end anywhere.
class EventReader {
 public:
  explicit EventReader(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    is_good = fd_.valid() && read_header() && is_event_header(header);
  }

  // Calls `take` with each event that is whole; the rank may go on writing.
  template <class Take>
  void for_each(const Take& take) {
    const auto read = [this](std::span<TraceEvent> events, size_t number) {
      return read_events(events, number);
    };
    for_each_whole_event(read, take);
  }

  EventHeader header{};
  bool is_good = false;

 private:
  bool read_header() {
    constexpr ssize_t kHeaderBytes = sizeof(header);
    return ::pread(fd_.get(), &header, kHeaderBytes, 0) == kHeaderBytes;
  }

  // How many whole ones there are. The fence keeps the next copy's loads behind this one's.
  size_t read_events(std::span<TraceEvent> events, size_t number) const {
    const off_t at = sizeof(EventHeader) + number * sizeof(TraceEvent);
    const ssize_t got = ::pread(fd_.get(), events.data(), events.size_bytes(), at);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return got < 0 ? 0 : got / sizeof(TraceEvent);
  }

  Fd fd_;
};

// The type of the entry itself: a link is none of the other types.
fs::file_type type_of(const fs::path& path) {
  std::error_code unknown;
  return fs::symlink_status(path, unknown).type();
}

// RUN_DIR/trace/ATTEMPT/RANK, in order. Links are not followed.
Paths files_of_all_attempts(const std::string& run_dir) {
  Paths files;
  for (const fs::path& attempt : paths_in(fs::path(run_dir) / "trace")) {
    if (type_of(attempt) != fs::file_type::directory)
      continue;
    append_all(files, filtered(paths_in(attempt), [](const fs::path& file) {
                 return type_of(file) == fs::file_type::regular;
               }));
  }
  std::ranges::sort(files);
  return files;
}

// Trace times are microseconds, with the nanoseconds behind the point. The smallest number has no
// positive counterpart in 64 bits with a sign.
std::string microseconds(int64_t nanoseconds) {
  const bool is_negative = nanoseconds < 0;
  const uint64_t as_unsigned = nanoseconds;
  const uint64_t size = is_negative ? -as_unsigned : as_unsigned;
  auto part = cat(size % 1000);
  part.insert(0, 3 - part.size(), '0');
  return cat(is_negative ? "-" : "", size / 1000, ".", part);
}

// Writes the trace aside and gives it its name when it is whole.
class TraceWriter : NoCopy {
 public:
  explicit TraceWriter(const std::string& path)
      : path_(path),
        aside_(name_aside(path)),
        fd_(::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (!fd_.valid())
      fail_errno(errno, "trace: cannot write '", path, "'");
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  }
  ~TraceWriter() {
    if (fd_.valid())
      ::unlink(aside_.c_str());  // an error
  }

  template <class... Parts>
  void add(const Parts&... event) {
    if (!std::exchange(first_, false))
      text_ += ",\n";
    text_ += cat(event...);
    if (text_.size() >= kWrittenAtOnce)
      flush();
  }
  void finish() {
    text_ += "\n]}\n";
    flush();
    fd_.reset();
    rename_aside(aside_, path_);
  }

 private:
  void flush() {
    write_all(fd_.get(), text_, path_);
    text_.clear();
  }
  const std::string path_;
  const std::string aside_;
  Fd fd_;
  std::string text_;
  bool first_ = true;
};

// The events of one rank, of one attempt or several.
class RankEvents {
 public:
  RankEvents(TraceWriter& writer, QuotedTexts& quoted, const EventHeader& header, int64_t zero)
      : writer_(writer),
        quoted_(quoted),
        header_(header),
        shift_(time_difference(time_sum(header.unix_minus_monotonic_ns, header.host_correction_ns),
                               zero)) {
    const auto name =
        cat("rank ", header.rank, " (", text_in(header.host), ", ", text_in(header.device), ")");
    add_metadata("process_name", cat("\"pid\":", header.rank), cat("\"name\":", quoted(name)));
    add_metadata(
        "process_sort_index", cat("\"pid\":", header.rank), cat("\"sort_index\":", header.rank));
  }

  void add(const TraceEvent& event) {
    switch (kind_of(event)) {
      case EventKind::span:
        return add_span(event);
      case EventKind::call:
        return add_call(event);
      case EventKind::thread_name:
        return add_thread_name(event);
      case EventKind::none:
        return;
    }
  }

 private:
  std::string time(int64_t monotonic_ns) const {
    return microseconds(time_sum(monotonic_ns, shift_));
  }

  std::string place(const TraceEvent& event) const {
    return cat("\"pid\":", header_.rank, ",\"tid\":", event.thread);
  }

  const std::string& name_of(const TraceEvent& event) {
    return quoted_(std::string(text_in(event.name)));
  }

  void add_metadata(const char* name, const std::string& place, const std::string& argument) {
    writer_.add("{\"ph\":\"M\",\"name\":\"", name, "\",", place, ",\"args\":{", argument, "}}");
  }

  void add_thread_name(const TraceEvent& event) {
    const bool is_main = event.thread == header_.main_thread;
    const std::string& name = is_main ? quoted_("main") : name_of(event);
    add_metadata("thread_name", place(event), cat("\"name\":", name));
  }

  void add_span(const TraceEvent& event) {
    const char* const category = event.category < kActivityCategories
                                     ? to_string(static_cast<Category>(event.category))
                                     : "span";
    const int64_t duration = std::max<int64_t>(time_difference(event.end_ns, event.begin_ns), 0);
    writer_.add("{\"ph\":\"X\",\"name\":",
                name_of(event),
                ",\"cat\":\"",
                category,
                "\",",
                place(event),
                ",\"ts\":",
                time(event.begin_ns),
                ",\"dur\":",
                microseconds(duration),
                "}");
  }

  // Calls overlap each other and the spans of their thread, so each is a begin and an end that
  // belong together by their number.
  void add_call(const TraceEvent& event) {
    const auto what = cat("\"name\":",
                          name_of(event),
                          ",\"cat\":\"collective\",\"id2\":{\"local\":\"",
                          ++calls_,
                          "\"},",
                          place(event));
    writer_.add("{\"ph\":\"b\",",
                what,
                ",\"ts\":",
                time(event.begin_ns),
                ",\"args\":{\"what\":",
                quoted_(std::string(text_in(event.detail))),
                ",\"bytes\":",
                event.bytes,
                "}}");
    writer_.add(
        "{\"ph\":\"e\",", what, ",\"ts\":", time(std::max(event.begin_ns, event.end_ns)), "}");
  }

  TraceWriter& writer_;
  QuotedTexts& quoted_;
  const EventHeader& header_;
  const int64_t shift_;
  int64_t calls_ = 0;
};

// Rank 0's time of day at a time of the rank's host.
int64_t unix_time(const EventHeader& header, int64_t monotonic_ns) {
  return time_sum(time_sum(header.unix_minus_monotonic_ns, header.host_correction_ns),
                  monotonic_ns);
}

// Both may be kNone.
int64_t earlier_of(int64_t a, int64_t b) {
  if (a == kNone)
    return b;
  return b == kNone ? a : std::min(a, b);
}

// The names of threads have no time. kNone where there is no event, or no file of events.
int64_t first_event_of(const std::string& path) {
  EventReader reader(path);
  int64_t first = kNone;
  if (!reader.is_good)
    return first;
  reader.for_each([&](const TraceEvent& event) {
    if (kind_of(event) != EventKind::thread_name)
      first = earlier_of(first, unix_time(reader.header, event.begin_ns));
  });
  return first;
}

// What all files together say is gathered in `merged`, `ranks` and `unmeasured`.
void note_file(MergedTrace& merged,
               IntSet& ranks,
               StringSet& unmeasured,
               const EventHeader& header) {
  ranks.insert(header.rank);
  merged.world_size = std::max(merged.world_size, header.world_size);
  merged.lost = time_sum(merged.lost, header.lost);
  if (header.host_uncertainty_ns < 0)
    unmeasured.emplace(text_in(header.host));
  merged.uncertainty_ns = std::max(merged.uncertainty_ns, header.host_uncertainty_ns);
}

// Nothing where none of the files has an event. Times count from the first event: as microseconds
// of Unix time they would lose their digits.
std::optional<MergedTrace> merge_files(const std::string& run_dir,
                                       const Paths& files,
                                       const std::string& name) {
  int64_t zero = kNone;
  for (const fs::path& file : files)
    zero = earlier_of(zero, first_event_of(file));
  if (zero == kNone)
    return std::nullopt;
  MergedTrace merged{.path = cat(run_dir, "/", name), .ranks = {}};
  IntSet ranks;
  StringSet unmeasured;  // hosts, of which one is the measure
  QuotedTexts quoted;
  TraceWriter writer(merged.path);
  for (const fs::path& file : files) {
    EventReader reader(file);
    if (!reader.is_good)
      continue;
    note_file(merged, ranks, unmeasured, reader.header);
    RankEvents events(writer, quoted, reader.header, zero);
    reader.for_each([&](const TraceEvent& event) {
      events.add(event);
      if (kind_of(event) != EventKind::thread_name)
        ++merged.events;
    });
  }
  writer.finish();
  if (unmeasured.size() > 1)
    merged.uncertainty_ns = -1;
  merged.ranks.assign(ranks.begin(), ranks.end());
  return merged;
}

// A file of events says which host wrote it.
Paths files_of_this_host(const std::string& run_dir) {
  const auto host = activity_host_name();
  Paths files = files_of_all_attempts(run_dir);
  std::erase_if(files, [&](const fs::path& file) {
    const EventReader reader(file);
    return !reader.is_good || readable(text_in(reader.header.host)) != host;
  });
  return files;
}

}  // namespace

// The ranks' files go only when the trace is whole: an error leaves them.
std::optional<MergedTrace> merge_trace(const std::string& run_dir) {
  const auto merged = copy_trace(run_dir);
  std::error_code error;
  if (merged)
    fs::remove_all(fs::path(run_dir) / "trace", error);
  return merged;
}

std::optional<MergedTrace> copy_trace(const std::string& run_dir) {
  return merge_files(run_dir, files_of_all_attempts(run_dir), "trace.json");
}

// Other hosts' files are their launchers' affair.
std::optional<MergedTrace> merge_earlier_trace(const std::string& run_dir) {
  const Paths mine = files_of_this_host(run_dir);
  const bool is_alone = mine.size() == files_of_all_attempts(run_dir).size();
  const std::string name = is_alone ? "trace.json" : cat("trace.", activity_host_name(), ".json");
  const auto merged = merge_files(run_dir, mine, name);
  remove_earlier_trace(run_dir);
  return merged;
}

void remove_earlier_trace(const std::string& run_dir) {
  for (const fs::path& file : files_of_this_host(run_dir))
    ::unlink(file.c_str());
}

}  // namespace muster
