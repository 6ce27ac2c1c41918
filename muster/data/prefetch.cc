// Worker threads make numbered things (batches) ahead of the thread that takes them in order. One
// mutex guards a map from numbers to finished things. `limit` holds the workers back: it moves on
// by one with every thing taken. An exception of a worker is kept with its number, and thrown to
// whoever takes that number. When the process ends, the workers end first (WorkersOfProcess).
#include "muster/data/prefetch.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/trace/span.h"

namespace muster {

// This holds what a worker has made, or else the exception that making it threw.
struct MadeThing {
  Prefetch::Thing thing;
  std::exception_ptr error;
};

namespace {

// A wait this long is worth a warning where the caller gave no timeout.
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::seconds kPatienceAtEnd{2};

thread_local bool t_is_worker = false;

// Runs outside the lock. An exception becomes part of the result, so that it reaches the taker.
MadeThing made(const Prefetch::Make& make, int64_t number, WorkerPlace& place) {
  MadeThing result;
  try {
    result.thing = make(number, place);
  } catch (...) {
    result.error = std::current_exception();
  }
  place.sample = -1;
  return result;
}

// LibTorch would give every worker a team of threads of its own. at::set_num_threads() is for all
// threads of the process; OpenMP's own function is for the calling one.
void compute_alone() {
  at::get_num_threads();  // which sets this thread's number when it is first asked
  using SetThreads = void (*)(int);
  static const auto set_threads =
      reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr)
    set_threads(1);
}

}  // namespace

bool process_ends();

struct Prefetch::State {
  std::mutex mutex;
  std::condition_variable room;  // for the workers
  std::condition_variable ready;
  Make make;
  int64_t first_not_begun;
  int64_t begin;
  int64_t end;
  int64_t turns = 0;  // the workers, where each has numbers of its own
  int64_t limit;      // the first that is too far ahead
  bool stop = false;
  std::map<int64_t, MadeThing> made_things;
  std::vector<std::unique_ptr<WorkerPlace>> places;
  std::vector<std::thread> threads;
  int running = 0;            // of the workers
  std::exception_ptr broken;  // what ended one of them, as for lack of memory
  std::condition_variable ended;

  // Workers finish the thing that they are at, and take no other.
  void tell_to_stop() {
    const Lock lock(mutex);
    stop = true;
    room.notify_all();
  }

  // An exception that left the thread would end the process.
  void run(WorkerPlace& place) noexcept {
    std::exception_ptr failure;
    try {
      compute_alone();
      work(place);
    } catch (...) {
      failure = std::current_exception();
    }
    const Lock lock(mutex);
    if (failure)
      broken = failure;
    --running;
    ready.notify_all();
    ended.notify_all();
  }

  // A worker takes the next number, makes its thing without the lock, and stores it. With turns
  // each worker has every `turns`-th number for itself; without, all draw from one counter.
  void work(WorkerPlace& place) {
    UniqueLock lock(mutex);
    int64_t own = begin;
    while (turns > 0 && own % turns != place.worker)
      ++own;
    int64_t& next = turns > 0 ? own : first_not_begun;
    while (true) {
      room.wait(lock, [&] { return stop || next >= end || next < limit; });
      if (stop || next >= end)
        return;
      const int64_t number = next;
      next += std::max<int64_t>(turns, 1);
      lock.unlock();
      MadeThing result = made(make, number, place);
      lock.lock();
      // The process is being torn down: what the worker would use next may be destroyed already.
      if (stop && process_ends()) {
        lock.unlock();
        for (;;)
          ::pause();
      }
      made_things.emplace(number, std::move(result));
      ready.notify_all();
    }
  }
};

namespace {

// The workers of this process. When it ends, by exit() within a loop or with a worker that was left
// behind, the C++ library destroys what they compute with, LibTorch's tables too. So they end
// first, as far as they do within kPatienceAtEnd; the others stay where they come back to, until
// they end with the process.
class WorkersOfProcess {
 public:
  static WorkersOfProcess& get() {
    static auto* const workers = new WorkersOfProcess;  // never destroyed: they may come back late
    return *workers;
  }

  // States are held weakly, so this list keeps nothing alive that workers have made.
  void add(const std::shared_ptr<Prefetch::State>& state) {
    static std::once_flag once;
    std::call_once(once, call_at_end);
    const Lock lock(mutex_);
    std::erase_if(states_, [](const auto& other) { return other.expired(); });
    states_.push_back(state);
  }

  // What was made by then is destroyed after the workers have ended: LibTorch makes some tables at
  // their first use.
  void note_first_thing() {
    static std::once_flag once;
    std::call_once(once, call_at_end);
  }

  bool process_ends() const { return process_ends_; }

 private:
  // Functions of atexit() and static destructors run in reverse order, so the moment of this call
  // decides what still lives when the workers end.
  static void call_at_end() {
    std::atexit([] { get().end(); });
  }

  // A forked child has none of the threads, and perhaps a lock that one of them held.
  void end() {
    if (::getpid() != process_ || was_called_.exchange(true))
      return;
    std::vector<std::weak_ptr<Prefetch::State>> states;
    {
      const Lock lock(mutex_);
      states = states_;
    }
    const auto until = Clock::now() + kPatienceAtEnd;
    for (const auto& left : states) {
      const auto state = left.lock();
      if (!state)
        continue;
      state->tell_to_stop();
      UniqueLock lock(state->mutex);
      const int self = t_is_worker ? 1 : 0;  // one that calls exit() is not waited for
      state->ended.wait_until(lock, until, [&] { return state->running <= self; });
    }
    process_ends_ = true;
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<std::weak_ptr<Prefetch::State>> states_;
  std::atomic<bool> was_called_ = false;
  std::atomic<bool> process_ends_ = false;
};

}  // namespace

// Declared above State, which needs it, and defined here, where WorkersOfProcess is known.
bool process_ends() {
  return WorkersOfProcess::get().process_ends();
}

Prefetch::Prefetch(Make make, int64_t begin, int64_t end, const PrefetchOptions& options)
    : make_(std::move(make)), next_(begin), end_(end), options_(options) {
  if (options.ahead == 0)
    options_.ahead = int64_t{2} * options.workers;
  // There is no state without workers, or with nothing to make: next() then makes things itself.
  if (options.workers == 0 || begin >= end)
    return;
  state_ = std::make_shared<State>();
  state_->make = make_;
  state_->first_not_begun = begin;
  state_->begin = begin;
  state_->end = end;
  if (options.in_turns)
    state_->turns = options.workers;
  state_->limit = begin + options_.ahead;
  WorkersOfProcess::get().add(state_);
  try {
    start_workers();
  } catch (const std::system_error& error) {
    stop_workers();
    throw unavailable("data loader: expected ",
                      options.workers,
                      " worker threads, got ",
                      state_->threads.size(),
                      ": ",
                      error.what(),
                      "; ask for fewer workers");
  } catch (...) {
    stop_workers();  // a thread that nobody joins ends the process
    throw;
  }
}

void Prefetch::start_workers() {
  for (int worker = 0; worker < options_.workers; ++worker) {
    WorkerPlace& place = *state_->places.emplace_back(std::make_unique<WorkerPlace>());
    place.worker = worker;
    // Room is made first, so that no thread that has begun is lost for lack of memory.
    state_->threads.reserve(state_->places.size());
    // The thread holds the state alive and touches nothing of the Prefetch, which may be gone
    // before it.
    state_->threads.emplace_back([state = state_, &place] {
      ::pthread_setname_np(::pthread_self(), "muster-loader");
      const c10::AutoGradMode no_gradients(false);
      t_is_worker = true;
      state->run(place);
    });
    const Lock lock(state_->mutex);
    ++state_->running;
  }
}

// A worker that a timeout left behind may never return, so it is detached; it holds the state
// alive.
void Prefetch::stop_workers() {
  state_->tell_to_stop();
  const bool leave = left_behind_ || process_ends();
  for (std::thread& thread : state_->threads)
    leave ? thread.detach() : thread.join();
}

Prefetch::~Prefetch() {
  if (state_)
    stop_workers();
}

Prefetch::Thing Prefetch::next() {
  const Span span("data wait", Category::data);
  if (!state_) {
    WorkerPlace here;
    MadeThing result = made(make_, next_++, here);
    if (result.error)
      std::rethrow_exception(result.error);
    return result.thing;
  }
  const auto start = Clock::now();
  {
    UniqueLock lock(state_->mutex);
    const auto is_ready = [&] {
      return state_->broken || state_->made_things.contains(next_);
    };
    const auto patience = options_.timeout.value_or(kPatience);
    bool warned = false;
    while (!state_->ready.wait_for(lock, patience, is_ready)) {
      if (options_.timeout)
        fail_late();
      if (!std::exchange(warned, true))
        log_warning("data loader: batch ",
                    next_,
                    " has not come for ",
                    kPatience.count(),
                    " s: the workers are at ",
                    places_text());
    }
  }
  stalled_ += Clock::now() - start;
  return take();
}

// Nothing is ever ready without workers, since next() itself makes the things.
std::optional<Prefetch::Thing> Prefetch::next_if_ready() {
  if (!state_)
    return {};
  {
    const Lock lock(state_->mutex);
    const auto found = state_->made_things.find(next_);
    if (found == state_->made_things.end() || found->second.error)
      return {};  // next() throws it
  }
  return take();
}

// The thing is there, or a worker is broken; the caller has waited for either.
Prefetch::Thing Prefetch::take() {
  MadeThing result;
  {
    const Lock lock(state_->mutex);
    if (!state_->made_things.contains(next_))
      std::rethrow_exception(state_->broken);
    result = std::move(state_->made_things.extract(next_++).mapped());
    ++state_->limit;
  }
  if (options_.in_turns) {
    state_->room.notify_all();  // but one can go on, and only it knows
  } else {
    state_->room.notify_one();
  }
  WorkersOfProcess::get().note_first_thing();
  if (result.error)
    std::rethrow_exception(result.error);
  return result.thing;
}

// The workers go on while this reads their samples, which are atomic for that reason.
std::string Prefetch::places_text() const {
  Strings at;
  for (const auto& place : state_->places)
    if (place->sample >= 0)
      at.push_back(cat("sample ", place->sample.load(), " (worker ", place->worker, ")"));
  return at.empty() ? "no sample" : join(at, ", ");
}

// The worker that is late may never come back, so the destructor must not wait for it.
void Prefetch::fail_late() {
  left_behind_ = true;
  throw Error(ErrorCode::timeout,
              "data loader: expected batch ",
              next_,
              " within ",
              options_.timeout->count(),
              " ms, got none: the workers are at ",
              places_text(),
              "; look at what the data set's get() waits for, or give a longer timeout");
}

}  // namespace muster
