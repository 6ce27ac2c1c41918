// The server goes through hello, begin and tasks. Until begin it listens on a loop of its own; from
// then on on that of the LocalHost, which runs the tasks. Their output comes through pipes that are
// read only while the connection takes it. The destructor of the LocalHost ends all that is left,
// whatever has happened.
#include "muster/tasks/hosts/server.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "muster/base/clock.h"
#include "muster/base/folder_owner.h"
#include "muster/base/own_program.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/base/version.h"
#include "muster/device/probe.h"
#include "muster/launch/job_registry.h"
#include "muster/supervise/kept_requests.h"
#include "muster/tasks/hosts/left_over.h"
#include "muster/tasks/hosts/line_channel.h"
#include "muster/tasks/hosts/local_host.h"
#include "muster/tasks/hosts/seen_host.h"
#include "muster/tasks/hosts/task_log.h"

namespace muster {

namespace {

constexpr milliseconds kServerTick{500};
constexpr std::chrono::seconds kLastWordWithin{5};
// The run reads its tasks and its journal meanwhile.
constexpr std::chrono::seconds kBeginWithin{300};
// When more bytes are on the way, tasks wait with what they print, as at any pipe.
constexpr size_t kMostQueued = size_t{1} << 20;
// So much is passed on of a task that has ended, whose pipe others may still write to.
constexpr size_t kMostLastOutput = size_t{4} << 20;

// Variables in which srun tells its own tasks who they are: those of the run are none of them.
constexpr const char* kStepVariables[] = {
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID"};

// Its children shall not take themselves for tasks of the step that this server is.
void leave_srun_step() {
  for (const char* const name : kStepVariables)
    ::unsetenv(name);
  for (const auto& [name, value] : own_environment()) {
    if (name.starts_with("SLURM_STEP"))
      ::unsetenv(name.c_str());
  }
}

// One server, from the hello to its last word.
class TaskServer {
 public:
  TaskServer(Fd in, Fd out) : channel_(std::move(in), std::move(out), kLongestRemoteLine) {}

  // Returns the exit code: 1 where it ended by anything but the run's end.
  int run() {
    try {
      serve();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    over_ = true;  // what is still heard while all is ended counts no more
    streams_.clear();
    channel_.detach();
    local_.reset();  // ends all that is left
    if (last_word_.empty())
      return 0;
    say_last_word();
    return 1;
  }

 private:
  void serve() {
    wait_for_begin();
    if (!over_)
      begin();
    while (!over_) {
      for (const TaskEnd& end : local_->wait(Clock::now() + kServerTick))
        on_end(end);
      if (local_)
        look_around();
    }
  }

  struct Stream {  // of a task: its standard output and error
    Fd reading;
    EventLoop::Handle watch = 0;
  };

  void attach(EventLoop& loop) {
    channel_.attach(loop,
                    {.line = [this](const auto& line) { on_line(line); },
                     .end = [this](const auto& why) { on_end_of_input(why); },
                     .drained = [this] { resume_streams(); }});
  }

  // An end between two lines is how a run ends.
  void on_end_of_input(const std::string& why) {
    if (!why.empty())
      fail(why);
    over_ = true;
  }

  // Tells what there is, and waits until a run begins. The run's process may end meanwhile, or
  // never begin one.
  void wait_for_begin() {
    EventLoop loop;
    const DetachedAtEnd detached(channel_);
    attach(loop);
    const auto until = Clock::now() + kBeginWithin;
    while (!over_ && !begin_) {
      loop.run_once(until);
      if (Clock::now() >= until && !begin_)
        fail(cat("no run began within ", format_duration(kBeginWithin)));
    }
  }

  // Messages that are heard when all is over change nothing any more.
  void on_line(const std::string& line) {
    if (over_)
      return;
    heard_ = Clock::now();
    try {
      std::visit([this](const auto& message) { take(message); }, remote_message_from(line));
    } catch (const Error& error) {
      fail(error.message());
    }
  }

  void take(const RemoteAlive& /*alive*/) {}

  // Goes where the run is, and tells what this machine has.
  void take(const RemoteHello& hello) {
    if (hello_)
      return fail("expected one hello, got another");
    if (hello.version != version())
      return fail(cat("expected muster ",
                      hello.version,
                      " there, as where the run is, got ",
                      version(),
                      "; install the same, or name another with --remote-muster"));
    hello_ = hello;
    leave_srun_step();
    for (const auto& [name, value] : hello.environment)
      ::setenv(name.c_str(), value.c_str(), 1);
    if (!hello.folder.empty() && ::chdir(hello.folder.c_str()) != 0)
      return fail(
          cat("expected the folder '",
              hello.folder,
              "', where the run was started, to be there too (",
              std::strerror(errno),
              "); share it between the hosts, or start the run from one that they all have"));
    Inventory inventory = probe_for(hello);
    inventory.hosts[0] = seen_host(std::move(inventory.hosts[0]), inherited_masks());
    pool_ = std::make_unique<DevicePool>(inventory, PoolOptions{.numa_binding = NumaBinding::none});
    channel_.send(to_line(RemoteInventory{
        .version = version(), .inventory = std::move(inventory), .held = held_now(hello)}));
  }

  // The GPUs that other jobs hold, for a run that may only want to know.
  RemoteHoldings held_now(const RemoteHello& hello) const {
    RemoteHoldings held;
    ForeignLeases leases(
        *pool_, 0, hello.run_id, hello.held, [&](int gpu, int units, const std::string& by) {
          if (units > 0)
            held.push_back({gpu_at(gpu).uuid.value, units, by});
        });
    leases.look();
    return held;
  }

  // Ends the loop of wait_for_begin: the loop of the LocalHost takes the channel on.
  void take(const RemoteBegin& begin) {
    if (!hello_ || begin_)
      return fail("expected hello, then begin once, got begin");
    begin_ = begin;
    channel_.detach();
  }

  // The pool is this machine alone, as the run was told of it.
  void make_local_host() {
    LocalHostOptions options{.facts = {.run_dir = begin_->run_dir,
                                       .mark = begin_->mark,
                                       .launcher = own_program(),
                                       .environment = own_environment(),
                                       .grace = begin_->grace,
                                       .lease = begin_->lease,
                                       .visibility = begin_->visibility},
                             .run_id = begin_->run_id,
                             .on_held = [this](const auto&... held) { tell_held(held...); },
                             .on_memory = [this](auto... used) { tell_memory(used...); }};
    local_ = std::make_unique<LocalHost>(*pool_, std::move(options));
  }

  // Processes that an earlier run has left here are ended before anything of this one starts.
  void begin() {
    try {
      check_folder_owner(begin_->run_dir);
      std::filesystem::create_directories(begin_->run_dir);
      end_left_over(begin_->run_dir, begin_->earlier);
      make_local_host();
    } catch (const std::exception& error) {
      return fail(error.what());
    }
    registration_ =
        std::make_unique<JobRegistration>(JobNote{.id = begin_->run_id,
                                                  .pid = ::getpid(),
                                                  .program = "tasks of a run on another host",
                                                  .run_dir = begin_->run_dir,
                                                  .since_seconds = std::time(nullptr)});
    attach(local_->loop());
    local_->look();
    heard_ = ticked_ = Clock::now();
    keep_alive();  // the first says that it is ready, and what is held has been told
  }

  // A task that cannot be started has ended by that: the run is told so.
  void take(const RemoteStart& start) {
    if (!local_ || streams_.contains(start.id))
      return fail(cat("expected a new task, got number ", start.id));
    if (stopping_)
      return;
    try {
      start_task(start);
    } catch (const Error& error) {
      local_->forget(start.id);
      if (const auto stream = streams_.extract(start.id))
        local_->loop().cancel(stream.mapped().watch);
      tell_end(end_without_start(start.id, error));
    }
  }

  void tell_end(const TaskEnd& end) { channel_.send(to_line(RemoteEnded{.end = end})); }

  // Takes the task's GPUs, makes the pipe for its output, and starts it.
  void start_task(const RemoteStart& start) {
    const Allocation where = allocation_of(start);
    StartOrder order{.id = start.id,
                     .task = &start.task,
                     .attempt = start.attempt,
                     .where = &where,
                     .log = start.log};
    if (!local_->reserve(order)) {
      TaskEnd refused{.kind = TaskEnd::Kind::refused,
                      .why_not = "another job was faster to take its GPU"};
      refused.exit.exit.id = start.id;
      return tell_end(refused);
    }
    make_task_folder(start.log.substr(0, start.log.rfind('/')));
    Pipe output = open_pipe();
    Stream& stream = streams_[start.id];
    stream.reading = std::move(output.read_end);
    ::fcntl(stream.reading.get(), F_SETFL, O_NONBLOCK);
    order.log_fd = output.write_end.get();
    if (channel_.queued() <= kMostQueued)
      watch(start.id, stream);
    local_->start(order);
  }

  // The run names GPUs by their UUIDs: its pool numbers them in another way.
  Allocation allocation_of(const RemoteStart& start) const {
    Allocation where{.units = start.units,
                     .memory_bytes = start.memory_bytes,
                     .cpus = start.cpus,
                     .own_cpus = {},
                     .bound = start.bound};
    for (const auto& uuid : start.gpus) {
      const auto gpu = pool_->hosts()[0].find_gpu(uuid);
      if (!gpu)
        throw invalid_argument(
            "host ", hello_->name, ": expected GPUs that it has, got ", printable(uuid));
      where.gpus.push_back(*gpu);
    }
    return where;
  }

  void take(const RemoteEnd& end) {
    if (local_)
      local_->end(end.id, end.grace);
  }

  // A run that is stopped by its terminal says nothing more until it goes on.
  void take(const RemoteSignal& signal) {
    if (!local_)
      return fail("expected begin, got a signal");
    if (signal.signal == SIGTSTP)
      run_stopped_ = true;
    if (signal.signal == SIGCONT)
      run_stopped_ = false;
    local_->signal_all(signal.signal);
  }

  template <class Other>
  void take(const Other& /*message*/) {
    fail("expected a message of a run, got another");
  }

  // Tells it after each look: the run drops what it hears of a GPU that a task has.
  void tell_memory(int gpu, uint64_t bytes) {
    channel_.send(to_line(RemoteMemory{.gpu = gpu_at(gpu).uuid.value, .bytes = bytes}));
  }

  // Tells only what has changed.
  void tell_held(int gpu, int units, const std::string& by) {
    if (std::exchange(told_[gpu], units) == units)
      return;
    channel_.send(to_line(RemoteHeld{.gpu = gpu_at(gpu).uuid.value, .units = units, .by = by}));
  }

  const PoolGpu& gpu_at(int gpu) const { return pool_->hosts()[0].gpus[gpu]; }

  void watch(int id, Stream& stream) {
    stream.watch =
        local_->loop().watch_readable(stream.reading.get(), [this, id] { read_stream(id); });
  }

  // Passes one piece of the task's output on. False when nothing is there, or nothing will come any
  // more.
  bool pass_on_some(int id, Stream& stream) {
    std::string bytes(kOutputPieceBytes, '\0');
    const ssize_t n = ::read(stream.reading.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR)
      return true;
    if (n <= 0) {
      if (n == 0)
        local_->loop().cancel(stream.watch);
      return false;
    }
    bytes.resize(n);
    channel_.send(to_line(RemoteOutput{.id = id, .bytes = std::move(bytes)}));
    return true;
  }

  // When too much is on the way, no stream is read until it has gone (resume_streams).
  void read_stream(int id) {
    pass_on_some(id, streams_.at(id));
    if (channel_.queued() <= kMostQueued)
      return;
    for (auto& [other, stream] : streams_)
      local_->loop().cancel(stream.watch);
  }

  void resume_streams() {
    if (!local_)
      return;
    for (auto& [id, stream] : streams_) {
      if (stream.watch == 0)
        watch(id, stream);
    }
  }

  // The task's last output goes before its end.
  void on_end(const TaskEnd& end) {
    const int id = end.exit.exit.id;
    Stream& stream = streams_.at(id);
    size_t passed = 0;
    while (passed < kMostLastOutput && pass_on_some(id, stream))
      passed += kOutputPieceBytes;
    local_->loop().cancel(stream.watch);
    streams_.erase(id);
    // While it is stopped, only what went well is an end: the rest is to be tried elsewhere.
    if (!stopping_ || !end.exit.exit.failed())
      tell_end(end);
  }

  // A signal to the server stops it: its tasks are ended, and one more ends it at once.
  void look_around() {
    local_->look();
    if (hello_->memory)
      local_->look_at_memory();
    while (const auto signal = local_->take_signal()) {
      if (std::exchange(stopping_, true))
        return fail("it was stopped there, twice");
      last_word_ = cat("it was stopped there by ", signal_name(*signal));
      for (const auto& [id, stream] : streams_)
        local_->end(id, begin_->grace);
    }
    if (stopping_ && streams_.empty())
      over_ = true;
  }

  // Says that the server is there, and gives the run up when nothing has been heard from it. A
  // server that was stopped itself has heard nothing either.
  void keep_alive() {
    if (over_)
      return;
    const auto now = Clock::now();
    const bool was_stopped = now - std::exchange(ticked_, now) > 3 * kSayAliveEvery;
    if (was_stopped || run_stopped_)
      heard_ = now;
    if (now - heard_ > kServerGivesUpAfter)
      return fail(cat("nothing was heard from the run for ", format_duration(kServerGivesUpAfter)));
    channel_.send(to_line(RemoteAlive{}));
    local_->loop().call_at(now + kSayAliveEvery, [this] { keep_alive(); });
  }

  // Only the first reason is told.
  void fail(const std::string& why) {
    if (over_)
      return;
    over_ = true;
    last_word_ = why;
  }

  // The run is told why the server ends, on a loop of its own: the LocalHost is gone.
  void say_last_word() {
    EventLoop loop;
    const DetachedAtEnd detached(channel_);
    channel_.attach(
        loop,
        {.line = [](const std::string& /*line*/) {}, .end = [](const std::string& /*why*/) {}});
    channel_.send(to_line(RemoteCannot{.why = last_word_, .stopped = stopping_}));
    const auto until = Clock::now() + kLastWordWithin;
    while (channel_.queued() > 0 && Clock::now() < until)
      loop.run_once(until);
  }

  LineChannel channel_;
  std::optional<RemoteHello> hello_;
  std::optional<RemoteBegin> begin_;
  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<JobRegistration> registration_;
  std::unique_ptr<LocalHost> local_;
  std::map<int, Stream> streams_;  // of every task that runs
  std::map<int, int> told_;        // by GPU: units that others hold, as the run was told
  TimePoint heard_ = Clock::now();
  TimePoint ticked_ = Clock::now();
  bool run_stopped_ = false;
  bool stopping_ = false;
  bool over_ = false;
  std::string last_word_;
};

}  // namespace

Inventory probe_for(const RemoteHello& hello) {
  return probe_this_machine({.gpus = hello.gpus,
                             .detail = GpuDetail::full,
                             .links = hello.links,
                             .cpu_topology = hello.cpu_topology});
}

int serve_tasks(Fd in, Fd out) {
  return TaskServer(std::move(in), std::move(out)).run();
}

// Standard output carries messages: whatever else is printed goes where errors go.
int serve_tasks_of_another() {
  const KeptRequests kept;
  Fd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  Fd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const bool opened = in.valid() && out.valid() && nothing.valid();
  if (!opened || ::dup2(nothing.get(), STDIN_FILENO) < 0 ||
      ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    fail_errno("--serve: cannot take over standard input and output", errno);
  return serve_tasks(std::move(in), std::move(out));
}

}  // namespace muster
