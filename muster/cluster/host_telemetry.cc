#include "muster/cluster/host_telemetry.h"

#include <algorithm>
#include <filesystem>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_copy.h"
#include "muster/trace/event_copy.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLookEvery{250};
constexpr std::chrono::milliseconds kAskEvery{1'000};
constexpr std::chrono::milliseconds kWatchedFor{5'000};  // after the last look of `muster top`
constexpr std::chrono::milliseconds kWaitToBeAsked{2'000};
constexpr std::chrono::milliseconds kCollect{5'000};
constexpr std::chrono::milliseconds kNow{0};
constexpr size_t kMostEvents = size_t{512} << 20;  // of all hosts: they lie in the store's memory
constexpr size_t kMostValueOfEvents = size_t{48} << 20;

std::string ask_key(const std::string& host) {
  return cat("ask/", host);
}

std::string sample_key(const std::string& host) {
  return cat("sample/", host);
}

std::string activity_key(const std::string& host) {
  return cat("activity/", host);
}

std::string events_key(const std::string& host) {
  return cat("events/", host);
}

fs::path hosts_folder(const std::string& run_dir) {
  return fs::path(run_dir) / "hosts";
}

bool is_watched(const std::string& run_dir) {
  std::error_code error;
  const auto asked = fs::last_write_time(hosts_folder(run_dir) / "asked", error);
  return !error && fs::file_time_type::clock::now() - asked < kWatchedFor;
}

std::optional<std::string> take_value(Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  std::string value = store.get(key, kNow);
  store.remove(key);
  return value;
}

// Read by `muster top` at any time.
void replace_file(const fs::path& path, const std::string& bytes) {
  fs::path aside = path;
  aside += ".new";
  write_file(aside.string(), bytes);
  fs::rename(aside, path);
}

// What was of use while the job ran.
void remove_samples(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code failed;
    if (!entry->is_directory(failed)) fs::remove(entry->path(), failed);
  }
  fs::remove(folder, error);  // where nothing is left
}

}  // namespace

HostTelemetry::HostTelemetry(std::shared_ptr<Store> store, HostTelemetryOptions options)
    : store_(std::move(store)), options_(std::move(options)) {
  if (is_first()) {
    std::error_code error;
    fs::create_directories(hosts_folder(options_.run_dir), error);
  }
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

HostTelemetry::~HostTelemetry() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  try {
    if (!is_first()) store_->set(ask_key(options_.host), "end");
  } catch (const std::exception& error) {
    log(LogLevel::debug, cat("telemetry: ", error.what()));  // then the thread hears of the lost store itself
  }
  thread_.join();
  if (is_first()) remove_samples(hosts_folder(options_.run_dir));
}

bool HostTelemetry::pause(std::chrono::milliseconds length) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, length, [this] { return stop_.load(); });
}

// Nothing that a job needs depends on it.
void HostTelemetry::run() {
  try {
    is_first() ? watch() : answer();
  } catch (const std::exception& error) {
    log(LogLevel::debug, cat("telemetry ends: ", error.what()));
  }
}

void HostTelemetry::watch() {
  Clock::time_point next;
  do {
    if (Clock::now() >= next && is_watched(options_.run_dir)) {
      next = Clock::now() + kAskEvery;
      ask_and_write();
    }
  } while (pause(kLookEvery));
}

void HostTelemetry::ask_and_write() {
  for (size_t i = 1; i < options_.hosts.size(); ++i) {
    store_->set(ask_key(options_.hosts[i]), "sample");
    if (const auto sample = take_value(*store_, sample_key(options_.hosts[i])))
      replace_file(hosts_folder(options_.run_dir) / cat(i, ".sample"), *sample);
  }
}

void HostTelemetry::answer() {
  while (!stop_) {
    try {
      store_->get(ask_key(options_.host), kWaitToBeAsked);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      continue;
    }
    store_->remove(ask_key(options_.host));
    if (stop_ || !options_.sampler) continue;
    store_->set(sample_key(options_.host), options_.sampler(options_.ranks));
  }
}

// Rank 0 is the first host's.
bool HostTelemetry::shares_folder(int attempt) const {
  std::error_code error;
  const fs::path folder = options_.run_dir;
  return fs::exists(folder / "activity" / cat(attempt) / "0", error) ||
         fs::exists(folder / "trace" / cat(attempt) / "0", error);
}

void HostTelemetry::leave_as(const std::string& key, const std::string& bytes) {
  if (!bytes.empty()) store_->set(key, bytes);
}

void HostTelemetry::leave(int attempt) {
  if (is_first() || shares_folder(attempt)) return;
  const auto [first, count] = options_.ranks;
  const size_t most_events = std::min(kMostValueOfEvents, kMostEvents / options_.hosts.size());
  try {
    leave_as(activity_key(options_.host), pack_activity(options_.run_dir, attempt, first, count));
    leave_as(events_key(options_.host), pack_events(options_.run_dir, first, count, most_events));
  } catch (const std::exception& error) {
    log(LogLevel::debug, cat("telemetry: ", error.what()));
  }
}

void HostTelemetry::collect() {
  if (!is_first()) return;
  const Deadline deadline(kCollect);
  for (size_t i = 1; i < options_.hosts.size(); ++i) {
    if (deadline.passed()) {
      log(LogLevel::warn, cat("what the ranks of ", options_.hosts.size() - i, " of ", options_.hosts.size(),
                              " hosts did has not come in time; the job's report and trace are without it"));
      return;
    }
    try {
      const auto activity = take_value(*store_, activity_key(options_.hosts[i]));
      if (activity) unpack_activity(*activity, options_.run_dir);
      const auto events = take_value(*store_, events_key(options_.hosts[i]));
      if (events) unpack_events(*events, options_.run_dir);
    } catch (const std::exception& error) {
      log(LogLevel::debug, cat("telemetry: ", error.what()));
    }
  }
}

}  // namespace muster
