#include "muster/trace/merge_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/call_text.h"
#include "muster/trace/category.h"
#include "muster/trace/event_layout.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr size_t kEventsAtOnce = 4096;
constexpr size_t kWrittenAtOnce = size_t{1} << 20;
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

// A text in JSON, of which there are few different ones.
class QuotedTexts {
 public:
  const std::string& operator()(const std::string& text) {
    const auto found = known_.find(text);
    if (found != known_.end())
      return found->second;
    if (known_.size() > 100'000)
      known_.clear();
    return known_.emplace(text, nlohmann::json(readable(text)).dump()).first->second;
  }

 private:
  std::unordered_map<std::string, std::string> known_;
};

template <size_t kSize>
std::string text_in(const char (&field)[kSize]) {
  return {field, ::strnlen(field, kSize)};
}

// Reads the file's events in pieces; a file may end anywhere.
class EventReader {
 public:
  explicit EventReader(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    if (!fd_.valid() || !read_whole(&header, sizeof(header)))
      return;
    is_good = std::memcmp(header.magic, kEventMagic, sizeof(kEventMagic)) == 0 &&
              header.version == kEventVersion && header.event_bytes == sizeof(TraceEvent) &&
              header.rank >= 0 && header.world_size > header.rank;
  }

  // Calls `take` with each event that is whole.
  template <class Take>
  void for_each(const Take& take) {
    std::vector<TraceEvent> events(kEventsAtOnce);
    for (;;) {
      const ssize_t got = ::read(fd_.get(), events.data(), kEventsAtOnce * sizeof(TraceEvent));
      if (got < static_cast<ssize_t>(sizeof(TraceEvent)))
        return;
      for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(TraceEvent); ++i) {
        const TraceEvent& event = events[i];
        if (event.kind != 0 && event.kind <= static_cast<uint32_t>(EventKind::thread_name))
          take(event);
      }
    }
  }

  EventHeader header = {};
  bool is_good = false;

 private:
  bool read_whole(void* into, size_t bytes) {
    return ::read(fd_.get(), into, bytes) == static_cast<ssize_t>(bytes);
  }
  Fd fd_;
};

std::vector<fs::path> files_of_all_attempts(const std::string& run_dir) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(fs::path(run_dir) / "trace", error), end;
       !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    if (entry.depth() == 1 &&
        fs::symlink_status(entry->path(), unknown).type() == fs::file_type::regular)
      files.push_back(entry->path());
    if (entry.depth() >= 1)
      entry.disable_recursion_pending();
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Trace times are microseconds; the nanoseconds behind the point.
std::string microseconds(int64_t nanoseconds) {
  const bool negative = nanoseconds < 0;
  const auto size =
      negative ? -static_cast<uint64_t>(nanoseconds) : static_cast<uint64_t>(nanoseconds);
  std::string part = cat(size % 1000);
  part.insert(0, 3 - part.size(), '0');
  return cat(negative ? "-" : "", size / 1000, ".", part);
}

class TraceWriter {
 public:
  explicit TraceWriter(const std::string& path)
      : path_(path),
        aside_(name_aside(path)),
        fd_(::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (!fd_.valid())
      fail_errno(cat("trace: cannot write '", aside_, "'"), errno);
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  }
  ~TraceWriter() {
    if (fd_.valid())
      ::unlink(aside_.c_str());  // an error
  }
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void add(const std::string& event) {
    if (!std::exchange(first_, false))
      text_ += ",\n";
    text_ += event;
    if (text_.size() >= kWrittenAtOnce)
      flush();
  }
  void finish() {
    text_ += "\n]}\n";
    flush();
    fd_.reset();
    fs::rename(aside_, path_);
  }

 private:
  void flush() {
    write_all(fd_.get(), text_, aside_);
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
    const std::string name =
        cat("rank ", header.rank, " (", text_in(header.host), ", ", text_in(header.device), ")");
    writer.add(cat("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":",
                   header.rank,
                   ",\"args\":{\"name\":",
                   quoted(name),
                   "}}"));
    writer.add(cat("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":",
                   header.rank,
                   ",\"args\":{\"sort_index\":",
                   header.rank,
                   "}}"));
  }

  void add(const TraceEvent& event) {
    switch (static_cast<EventKind>(event.kind)) {
      case EventKind::span:
        return add_span(event);
      case EventKind::call:
        return add_call(event);
      case EventKind::thread_name:
        writer_.add(cat("{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":",
                        header_.rank,
                        ",\"tid\":",
                        event.thread,
                        ",\"args\":{\"name\":",
                        quoted_(event.thread == header_.main_thread ? "main" : text_in(event.name)),
                        "}}"));
        return;
      case EventKind::none:
        return;
    }
  }

 private:
  std::string time(int64_t monotonic_ns) const {
    return microseconds(time_sum(monotonic_ns, shift_));
  }

  void add_span(const TraceEvent& event) {
    const char* const category = event.category < kActivityCategories
                                     ? to_string(static_cast<Category>(event.category))
                                     : "span";
    writer_.add(
        cat("{\"ph\":\"X\",\"name\":",
            quoted_(text_in(event.name)),
            ",\"cat\":\"",
            category,
            "\",\"pid\":",
            header_.rank,
            ",\"tid\":",
            event.thread,
            ",\"ts\":",
            time(event.begin_ns),
            ",\"dur\":",
            microseconds(std::max<int64_t>(time_difference(event.end_ns, event.begin_ns), 0)),
            "}"));
  }

  // Calls overlap each other, and what the thread does meanwhile: a begin and an end that belong
  // together.
  void add_call(const TraceEvent& event) {
    const std::string what = cat("\"name\":",
                                 quoted_(text_in(event.name)),
                                 ",\"cat\":\"collective\",\"id2\":{\"local\":\"",
                                 ++calls_,
                                 "\"},\"pid\":",
                                 header_.rank,
                                 ",\"tid\":",
                                 event.thread);
    writer_.add(cat("{\"ph\":\"b\",",
                    what,
                    ",\"ts\":",
                    time(event.begin_ns),
                    ",\"args\":{\"what\":",
                    quoted_(text_in(event.detail)),
                    ",\"bytes\":",
                    event.bytes,
                    "}}"));
    writer_.add(
        cat("{\"ph\":\"e\",", what, ",\"ts\":", time(std::max(event.begin_ns, event.end_ns)), "}"));
  }

  TraceWriter& writer_;
  QuotedTexts& quoted_;
  const EventHeader& header_;
  const int64_t shift_;
  int64_t calls_ = 0;
};

// Times count from the first rank's beginning: as microseconds of Unix time they would lose their
// digits.
int64_t zero_of(const EventHeader& header, int64_t opened_ns) {
  return time_sum(time_sum(header.unix_minus_monotonic_ns, header.host_correction_ns), opened_ns);
}

int64_t first_event_of(const std::string& path) {
  EventReader reader(path);
  int64_t first = kNone;
  if (!reader.is_good)
    return first;
  reader.for_each([&](const TraceEvent& event) {
    if (event.kind == static_cast<uint32_t>(EventKind::thread_name))
      return;
    const int64_t at = zero_of(reader.header, event.begin_ns);
    if (first == kNone || at < first)
      first = at;
  });
  return first;
}

void note_file(MergedTrace& merged,
               std::set<int>& ranks,
               std::set<std::string>& unmeasured,
               const EventHeader& header) {
  ranks.insert(header.rank);
  merged.world_size = std::max(merged.world_size, header.world_size);
  merged.lost = time_sum(merged.lost, header.lost);
  if (header.host_uncertainty_ns < 0)
    unmeasured.insert(text_in(header.host));
  merged.uncertainty_ns = std::max(merged.uncertainty_ns, header.host_uncertainty_ns);
}

// Nothing where none of the files has an event.
std::optional<MergedTrace> merge_files(const std::string& run_dir,
                                       const std::vector<fs::path>& files,
                                       const std::string& name) {
  int64_t zero = kNone;
  for (const fs::path& file : files) {
    const int64_t first = first_event_of(file);
    if (first != kNone && (zero == kNone || first < zero))
      zero = first;
  }
  if (zero == kNone)
    return std::nullopt;
  MergedTrace merged{.path = cat(run_dir, "/", name), .ranks = {}};
  std::set<int> ranks;
  std::set<std::string> unmeasured;  // hosts, of which one is the measure
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
      merged.events += event.kind != static_cast<uint32_t>(EventKind::thread_name);
    });
  }
  writer.finish();
  if (unmeasured.size() > 1)
    merged.uncertainty_ns = -1;
  merged.ranks.assign(ranks.begin(), ranks.end());
  return merged;
}

std::string own_host() {
  char host[sizeof(EventHeader::host)] = {};
  ::gethostname(host, sizeof(host) - 1);
  return host;
}

std::vector<fs::path> files_of_this_host(const std::string& run_dir) {
  const std::string host = own_host();
  std::vector<fs::path> files = files_of_all_attempts(run_dir);
  std::erase_if(files, [&](const fs::path& file) {
    const EventReader reader(file);
    return !reader.is_good || text_in(reader.header.host) != host;
  });
  return files;
}

}  // namespace

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

std::optional<MergedTrace> merge_earlier_trace(const std::string& run_dir) {
  const std::vector<fs::path> mine = files_of_this_host(run_dir);
  const bool is_alone = mine.size() == files_of_all_attempts(run_dir).size();
  const auto merged =
      merge_files(run_dir, mine, is_alone ? "trace.json" : cat("trace.", own_host(), ".json"));
  remove_earlier_trace(run_dir);
  return merged;
}

void remove_earlier_trace(const std::string& run_dir) {
  for (const fs::path& file : files_of_this_host(run_dir))
    ::unlink(file.c_str());
}

}  // namespace muster
