// Two threads for each host. One looks into the run's folder for questions of people and ranks
// here, and asks the other hosts through the store. The other answers what is asked of this host.
// Questions to a host are a log in the store; answers have keys of their own, which the asker
// removes.
#include "muster/cluster/host_telemetry.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/file_age.h"
#include "muster/base/folders.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/cluster/late_requests.h"
#include "muster/launch/job_setup.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_copy.h"
#include "muster/trace/event_copy.h"
#include "muster/trace/hosts_folder.h"
#include "muster/trace/late_rank.h"
#include "muster/trace/stack_request.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr milliseconds kLookEvery{250};
constexpr milliseconds kAskEvery{1'000};
// An agent of a new round does not get what was asked before it listened, so it is asked again.
constexpr std::chrono::seconds kAskAgain{3};
constexpr milliseconds kWaitForRequest{2'000};
constexpr milliseconds kCollect{5'000};
constexpr milliseconds kThreadsEnd{1'000};
constexpr std::chrono::seconds kDescribeAgain{10};
// A wait that is older is mostly over, and what the late rank does by then misleads.
constexpr std::chrono::seconds kLateFor{30};
constexpr milliseconds kNow{0};
// The events of all hosts lie in the store's memory until the first host takes them.
constexpr size_t kMostEvents = size_t{512} << 20;
constexpr size_t kMostValueOfEvents = size_t{48} << 20;

constexpr auto kSampleRequest = "sample";
constexpr std::string_view kDescribeRequest = "describe ";

std::string request_log(const std::string& host) {
  return cat("ask/", host);
}

std::string sample_key(const std::string& host, const std::string& asker) {
  return cat("sample/", host, "/", asker);
}

// Under this key a host lists who has asked it for samples: an asker that is gone takes none.
std::string askers_key(const std::string& host) {
  return cat("sample/", host);
}

// The ranks of a host change from round to round, their places there begin at 0.
std::string activity_key(const std::string& host, size_t place) {
  return cat("activity/", host, "/", place);
}

// Under this key a host says how many ranks it has left the activity of.
std::string num_activities_key(const std::string& host) {
  return cat("activity/", host);
}

// `place` is that of the files below RUN_DIR/trace, by attempt and rank: "3/1".
std::string events_key(const std::string& host, const std::string& place) {
  return cat("events/", host, "/", place);
}

// Under this key a host lists the places of its files.
std::string events_list_key(const std::string& host) {
  return cat("events/", host);
}

// The value, which is removed; nothing if there is none.
std::optional<std::string> take_value(Store& store, const std::string& key) {
  auto value = store.value(key);
  if (value)
    store.remove(key);
  return value;
}

// Takes the text before the first blank off, and the blank too.
std::string take_word(std::string& text) {
  std::string word = text.substr(0, text.find(' '));
  text.erase(0, word.size() + 1);
  return word;
}

// The value as a number; 0 if there is none.
int64_t number_in(const std::optional<std::string>& value) {
  return parse_int(value.value_or("0")).value_or(0);
}

// Requests that nobody has taken, up to the last one.
void remove_requests(Store& store, const std::string& host, int64_t last) {
  while (last > 0 && store.remove(log_entry_key(request_log(host), last)))
    --last;
}

// An asker may be gone when the host leaves.
void note_asker(Store& store, const std::string& host, const std::string& asker) {
  const auto known = store.value(askers_key(host)).value_or("");
  if (!contains(split(known, '\n'), asker))
    store.set(askers_key(host), cat(known, asker, "\n"));
}

bool is_in(const RankRange& ranks, int rank) {
  const size_t number = rank;
  return number >= ranks.first && number < ranks.first + ranks.count;
}

Ints numbers_in(const RankRange& ranks) {
  const int first = ranks.first;
  return mapped_indices(int(ranks.count), [&](int place) { return first + place; });
}

// Whether a waiting rank of this host has just described the late one.
bool has_shown_its_stack(const std::string& activity_path) {
  return is_younger_than(stack_path(activity_path), kDescribeAgain);
}

// Calls `tell`, and logs its error: nothing that a job needs depends on what is told. Returns
// whether there was none.
template <class Tell>
bool without_error(const Tell& tell) {
  try {
    tell();
    return true;
  } catch (const std::exception& error) {
    log_debug("telemetry: ", error.what());
    return false;
  }
}

}  // namespace

// The threads share this, and each holds it as long as it lives.
struct HostTelemetry::State : std::enable_shared_from_this<State> {
  State(SharedStore at, HostTelemetryOptions with)
      : store(std::move(at)), options(std::move(with)) {}

  void start(void (State::*run)());
  bool pause(milliseconds length);  // false: it is to end
  void stop();
  void ask(const std::string& host, const std::string& what);
  const RoundHosts& all();

  void watch();
  bool hold_folder(Fd& lock);
  void look();
  void pass_on_late_requests();
  void ask_for_late_ranks(const std::string& host, const RankRange& of_host);
  void ask_for_samples();
  void take_samples();

  void answer();
  void answer_to(std::string request);
  void describe(const LateRequest& request);

  const SharedStore store;
  const HostTelemetryOptions options;
  const std::string id = make_uuid();  // of this one's requests: their numbers begin anew with each

  // The watching thread's.
  int64_t requests = 0;
  int64_t first_of_watch = 0;
  bool was_watched = false;
  TimePoint next_ask{};
  std::map<std::string, TimePoint> unanswered{};  // hosts, since when
  LateRequests late{};
  TimePoint next_late{};
  // The answering thread's.
  StringSet askers{};
  std::map<int, TimePoint> described{};  // by rank

  std::mutex hosts_mutex;
  std::optional<RoundHosts> hosts;  // once they have been asked for

  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  int threads = 0;
};

HostTelemetry::HostTelemetry(SharedStore store, HostTelemetryOptions options)
    : state_(std::make_shared<State>(std::move(store), std::move(options))) {
  state_->start(&State::watch);
  state_->start(&State::answer);
}

HostTelemetry::~HostTelemetry() {
  state_->stop();
  if (is_first() || !shares_folder(0))
    remove_host_samples(state_->options.run_dir);
}

void HostTelemetry::finish() {
  state_->stop();
  without_error([this] {  // wakes the thread that answers
    state_->store->append(request_log(state_->options.host), cat(state_->id, " end"));
  });
  UniqueLock lock(state_->mutex);
  state_->changed.wait_for(lock, kThreadsEnd, [this] { return state_->threads == 0; });
}

// The threads are left behind when the agent ends: they may wait for the store.
void HostTelemetry::State::start(void (State::*run)()) {
  const auto ended = [](State& self) {
    const Lock lock(self.mutex);
    --self.threads;
    self.changed.notify_all();
  };
  {
    const Lock lock(mutex);
    ++threads;
  }
  const BlockedSignals blocked;  // in the thread, for good
  const bool runs = without_error([&] {
    std::thread([self = shared_from_this(), run, ended] {
      without_error([&] { ((*self).*run)(); });
      ended(*self);
    }).detach();
  });
  if (!runs)
    ended(*this);
}

bool HostTelemetry::State::pause(milliseconds length) {
  UniqueLock lock(mutex);
  return !changed.wait_for(lock, length, [this] { return stopped; });
}

void HostTelemetry::State::stop() {
  const Lock lock(mutex);
  stopped = true;
  changed.notify_all();
}

// Few hosts are ever asked about the others. The answer stays as it is. Throws: as options.all.
const RoundHosts& HostTelemetry::State::all() {
  const Lock lock(hosts_mutex);
  if (!hosts)
    hosts = options.all();
  return *hosts;
}

// A request is "<the asker's host> <its id> <number> <what>".
void HostTelemetry::State::ask(const std::string& host, const std::string& what) {
  store->append(request_log(host), cat(options.host, " ", id, " ", ++requests, " ", what));
}

// One of the agents that share a folder looks at it: the one that has the lock.
void HostTelemetry::State::watch() {
  make_hosts_folder(options.run_dir, options.launch);
  Fd lock;
  while (!hold_folder(lock)) {
    if (!pause(kAskEvery))
      return;
  }
  do {
    without_error([this] { look(); });
  } while (pause(kLookEvery));
}

// Whether this agent is to look at the folder. On a file system without locks the first host's is.
bool HostTelemetry::State::hold_folder(Fd& lock) {
  const std::string path = hosts_folder(options.run_dir) + "/lock";
  // The file is opened anew each time, as the agent that had the lock may have removed it.
  lock.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0)
    return true;
  const bool is_held = lock.valid() && errno == EWOULDBLOCK;
  return !is_held && options.host_index == 0;
}

void HostTelemetry::State::look() {
  pass_on_late_requests();
  const bool is_watched = are_other_hosts_asked(options.run_dir);
  if (is_watched && !was_watched)
    first_of_watch = requests + 1;
  was_watched = is_watched;
  if (!is_watched)
    return;
  if (Clock::now() >= next_ask)
    ask_for_samples();
  take_samples();
}

// Many ranks may wait for the same ones; each host is asked once, for its own. What cannot be
// passed on, because the store does not answer or has not all of the plan, is kept and passed on
// later, but not much later.
void HostTelemetry::State::pass_on_late_requests() {
  for (const LateRequest& request : take_late_requests(options.run_dir))
    late.add(request, Clock::now());
  late.forget_before(Clock::now() - kLateFor);
  if (late.empty() || Clock::now() < next_late)
    return;
  next_late = Clock::now() + kAskEvery;
  const RoundHosts& hosts = all();
  for (const size_t i : indices_of(hosts.ids))
    ask_for_late_ranks(hosts.ids[i], hosts.ranks.at(i));
  late.clear();  // the rest is no host's
}

// What the host has been asked goes.
void HostTelemetry::State::ask_for_late_ranks(const std::string& host, const RankRange& of_host) {
  for (const LateRequest& request : late.about([&](int rank) { return is_in(of_host, rank); })) {
    ask(host, cat(kDescribeRequest, to_text(request)));
    late.remove(request);
  }
}

// A host that has not answered has the request still, or its agent began after it: that host is
// asked again, but less often.
void HostTelemetry::State::ask_for_samples() {
  next_ask = Clock::now() + kAskEvery;
  for (const auto& host : all().ids) {
    const TimePoint* const asked = value_at(unanswered, host);
    if (asked != nullptr && Clock::now() - *asked < kAskAgain)
      continue;
    unanswered[host] = Clock::now();
    ask(host, kSampleRequest);
  }
}

// An answer to an earlier watch, or to the round before, is too old to be shown.
void HostTelemetry::State::take_samples() {
  for (size_t i = 0; i < all().ids.size(); ++i) {
    auto answer = take_value(*store, sample_key(all().ids[i], options.host));
    if (!answer)
      continue;
    unanswered.erase(all().ids[i]);
    const bool is_own = take_word(*answer) == id;
    const auto number = parse_int(take_word(*answer));
    if (is_own && number && *number >= first_of_watch)
      write_host_sample(options.run_dir, i, *answer);
  }
}

// Requests that came before this agent began are not for it. The one that comes after the end wakes
// this thread.
void HostTelemetry::State::answer() {
  int64_t next = 0;
  while (
      !without_error([&] { next = store->add(log_size_key(request_log(options.host)), 0) + 1; })) {
    if (!pause(kAskEvery))
      return;
  }
  without_error([&] { remove_requests(*store, options.host, next - 1); });
  for (;;) {
    const auto key = log_entry_key(request_log(options.host), next);
    std::string request;
    try {
      request = store->get(key, kWaitForRequest);
    } catch (const Error& error) {
      if (!pause(error.code() == ErrorCode::timeout ? kNow : kAskEvery))
        return;
      continue;
    }
    without_error([&] { store->remove(key); });
    if (!pause(kNow))
      return;
    ++next;
    without_error([&] { answer_to(request); });
  }
}

// Anything else than these two requests is of another version, or the end.
void HostTelemetry::State::answer_to(std::string request) {
  const auto asker = take_word(request);
  const auto asked_by = take_word(request);
  const auto number = take_word(request);
  if (request == kSampleRequest && options.sampler) {
    if (askers.insert(asker).second)
      note_asker(*store, options.host, asker);
    store->set(sample_key(options.host, asker),
               cat(asked_by, " ", number, " ", options.sampler(options.ranks)));
  }
  if (!request.starts_with(kDescribeRequest))
    return;
  const auto late = late_request_from(request.substr(kDescribeRequest.size()));
  if (late)
    describe(*late);
}

// Writes the stacks of this host's late ranks into the log, each at most every few seconds.
void HostTelemetry::State::describe(const LateRequest& request) {
  for (const int rank : request.ranks) {
    if (!is_in(options.ranks, rank))
      continue;
    const auto path = activity_path(options.run_dir, request.attempt, rank);
    const TimePoint* const before = value_at(described, rank);
    const bool again = before != nullptr && Clock::now() - *before < kDescribeAgain;
    if (again || has_shown_its_stack(path))
      continue;
    described[rank] = Clock::now();
    without_error([&] { log_warning(describe_late_rank(path)); });
  }
}

bool HostTelemetry::is_first() const {
  return state_->options.host_index == 0;
}

// Whether this host writes into the first host's folder: rank 0, which runs there, has left files
// here.
bool HostTelemetry::shares_folder(int attempt) const {
  const std::string& folder = state_->options.run_dir;
  return path_exists(activity_path(folder, attempt, 0)) ||
         path_exists(cat(folder, "/trace/", attempt, "/0"));
}

void HostTelemetry::leave(int attempt) {
  if (is_first() || shares_folder(attempt))
    return;
  leave_activity(attempt);
  without_error([this] { leave_events(); });
}

// The activity of each rank has a key of its own, as etcd's values are small. It replaces one of
// the attempt before.
void HostTelemetry::leave_activity(int attempt) {
  const HostTelemetryOptions& options = state_->options;
  without_error(
      [&] { state_->store->set(num_activities_key(options.host), cat(options.ranks.count)); });
  for (const int rank : numbers_in(options.ranks)) {
    without_error([&] {
      state_->store->set(activity_key(options.host, rank - options.ranks.first),
                         cat(attempt, " ", pack_activity(options.run_dir, attempt, rank)));
    });
  }
}

// Leaves the events of all attempts: ranks that went on in place have theirs where they began.
void HostTelemetry::leave_events() {
  const HostTelemetryOptions& options = state_->options;
  size_t room = std::min(kMostValueOfEvents, kMostEvents / std::max(1, options.num_hosts));
  std::string places;
  for (const auto& place : event_places(options.run_dir)) {
    without_error([&] {
      const auto events = pack_events(options.run_dir, place, room);
      if (events.empty())
        return;
      state_->store->set(events_key(options.host, place), events);
      room -= events.size();
      places += place + "\n";
    });
  }
  if (!places.empty())
    state_->store->set(events_list_key(options.host), places);
}

void HostTelemetry::collect(int last_attempt) {
  if (!is_first())
    return;
  const RoundHosts& hosts = state_->all();
  const Deadline deadline(kCollect);
  for (size_t i = 1; i < hosts.ids.size(); ++i) {
    if (deadline.passed()) {
      log_warning("what the ranks of ",
                  hosts.ids.size() - i,
                  " of ",
                  hosts.ids.size(),
                  " hosts did has not come in time; the job's report and trace are without it");
      return;
    }
    collect_activity(hosts.ids[i], hosts.ranks.at(i), last_attempt);
    without_error([&] { collect_events(hosts.ids[i]); });
  }
}

void HostTelemetry::collect_activity(const std::string& host, const RankRange& ranks, int attempt) {
  for (const int rank : numbers_in(ranks)) {
    without_error([&] {
      auto activity = take_value(*state_->store, activity_key(host, rank - ranks.first));
      if (!activity || take_word(*activity) != cat(attempt))
        return;
      unpack_activity(*activity, state_->options.run_dir, attempt, rank);
    });
  }
}

void HostTelemetry::collect_events(const std::string& host) {
  const auto places = take_value(*state_->store, events_list_key(host));
  if (!places)
    return;
  for (const auto& place : split(*places, '\n')) {
    const auto events =
        place.empty() ? std::nullopt : take_value(*state_->store, events_key(host, place));
    if (events)
      unpack_events(*events, state_->options.run_dir, place);
  }
}

// The lists say what there is. Activity that could not be left is missing between others.
void forget_host_telemetry(Store& store, const std::string& host) {
  const int64_t activities = number_in(take_value(store, num_activities_key(host)));
  for (int64_t place = 0; place < activities; ++place)
    store.remove(activity_key(host, place));
  for (const std::string& place :
       split(take_value(store, events_list_key(host)).value_or(""), '\n'))
    store.remove(events_key(host, place));
  for (const auto& asker : split(take_value(store, askers_key(host)).value_or(""), '\n'))
    store.remove(sample_key(host, asker));
  remove_requests(store, host, number_in(take_value(store, log_size_key(request_log(host)))));
}

}  // namespace muster
