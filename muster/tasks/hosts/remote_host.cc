// A connection has two parts of life. Before the run it says hello and listens, on a loop of the
// command's, until the server has told what it has. From `begin` on it is the runner's. Whatever
// goes wrong ends it by give_up: the command is killed, and every task there counts as lost.
#include "muster/tasks/hosts/remote_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <utility>
#include <variant>

#include "muster/base/contains.h"
#include "muster/base/folders.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/shell.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/tasks/hosts/task_process.h"

namespace muster {

namespace {

// How long an answer may take, an orderly end, what a command says of its end, and the end of one
// that was killed.
constexpr milliseconds kConnectWithin{60'000};
constexpr milliseconds kFirstWord{1'000};  // of who is waited for
constexpr milliseconds kFurtherWords{15'000};
constexpr milliseconds kCloseWithin{5'000};
constexpr milliseconds kTellsItsEndWithin{500};
constexpr milliseconds kDiesWithin{1'000};
constexpr int kMostNoise = 200;  // lines that a login prints before the first message
constexpr size_t kLongestErrorLine = size_t{4} << 10;

}  // namespace

// The hello waits in the pipe until the server is there to read it.
RemoteHost::RemoteHost(RemoteHostOptions options) : options_(std::move(options)) {
  Pipe in = open_pipe();
  Pipe out = open_pipe();
  Pipe errors = open_pipe();
  child_ = spawn_child({.argv = options_.argv,
                        .environment = options_.environment,
                        .stdin_fd = in.read_end.get(),
                        .stdout_fd = out.write_end.get(),
                        .stderr_fd = errors.write_end.get()});
  channel_ = std::make_unique<LineChannel>(
      std::move(out.read_end), std::move(in.write_end), kLongestRemoteLine);
  errors_ = std::move(errors.read_end);
  ::fcntl(errors_.get(), F_SETFL, O_NONBLOCK);
  channel_->send(to_line(options_.hello));
}

// The command is killed with its group, and by itself should it lead none.
RemoteHost::~RemoteHost() {
  leave_loop();
  channel_.reset();
  if (child_.pid <= 0)
    return;
  ::kill(-child_.pid, SIGKILL);
  ::kill(child_.pid, SIGKILL);
  wait_for_end(kDiesWithin);
}

void RemoteHost::listen(EventLoop& loop) {
  loop_ = &loop;
  channel_->attach(loop,
                   {.line = [this](const auto& line) { on_line(line); },
                    .end = [this](const auto& why) { on_end_of_output(why); }});
  watches_errors_ = loop.watch_readable(errors_.get(), [this] { read_errors(); });
}

void RemoteHost::on_end_of_output(const std::string& why) {
  const auto end = how_it_ended();
  give_up(why.empty() ? end : cat(why, ": ", end));
}

void RemoteHost::leave_loop() {
  if (loop_ == nullptr)
    return;
  channel_->detach();
  loop_->cancel(watches_errors_);
  loop_->cancel(alive_timer_);
  loop_ = nullptr;
}

void RemoteHost::begin(const RemoteBegin& run,
                       const DevicePool& pool,
                       int host,
                       EventLoop& loop,
                       RemoteEvents events) {
  pool_ = &pool;
  host_ = host;
  events_ = std::move(events);
  listen(loop);
  channel_->send(to_line(run));
  heard_ = ticked_ = Clock::now();
  keep_alive();
}

// Says that the run is there, and gives the host up when nothing has been heard from it. A run that
// was stopped itself (Ctrl-Z, a machine that slept) has heard nothing either, and that is nobody's
// fault.
void RemoteHost::keep_alive() {
  const auto now = Clock::now();
  if (now - std::exchange(ticked_, now) > 3 * kSayAliveEvery)
    heard_ = now;
  if (now - heard_ > kRunGivesUpAfter) {
    alive_timer_ = 0;
    return give_up(cat("nothing has been heard from it for ", format_duration(kRunGivesUpAfter)));
  }
  channel_->send(to_line(RemoteAlive{}));
  alive_timer_ = loop_->call_at(now + kSayAliveEvery, [this] { keep_alive(); });
}

// Whatever is no message that may come now ends the connection.
void RemoteHost::on_line(const std::string& line) {
  if (!problem_.empty())
    return;
  heard_ = Clock::now();
  // A login shell prints before the first message; that is no part of it.
  const bool is_noise = !inventory_ && !line.starts_with("{\"muster\"");
  if (is_noise && ++num_noise_ <= kMostNoise)
    return take_error_line(line);
  try {
    std::visit([this](const auto& message) { take(message); }, remote_message_from(line));
  } catch (const Error& error) {
    give_up(error.message());
  }
}

// Messages of a run are wrong before it has begun: then the host is given up.
bool RemoteHost::has_begun() {
  if (pool_ == nullptr)
    give_up("expected its inventory, got another message");
  return pool_ != nullptr;
}

void RemoteHost::take(const RemoteCannot& cannot) {
  refusal_ = cannot.stopped ? Refusal::stopped : Refusal::unfit;
  give_up(cannot.why);
}

// The first of a run says that the server is ready.
void RemoteHost::take(const RemoteAlive& /*alive*/) {
  ready_ = pool_ != nullptr;
}

template <class Other>
void RemoteHost::take(const Other& /*message*/) {
  if (has_begun())
    give_up("expected a message of a server, got another");
}

// The answer to hello. With it the connection leaves the loop, until a run begins.
void RemoteHost::take(const RemoteInventory& host) {
  if (inventory_)
    return take<RemoteInventory>(host);  // a second one is wrong
  if (host.version != options_.hello.version) {
    refusal_ = Refusal::unfit;
    return give_up(cat("expected muster ",
                       options_.hello.version,
                       " there, as here, got ",
                       printable(host.version),
                       "; install the same"));
  }
  inventory_ = host.inventory;
  held_before_ = host.held;
  inventory_->hosts[0].name = name();
  leave_loop();
}

void RemoteHost::take(const RemoteMemory& memory) {
  if (!has_begun())
    return;
  if (const auto gpu = pool_->hosts()[host_].find_gpu(memory.gpu))
    events_.on_memory(*gpu, memory.bytes);
}

void RemoteHost::take(const RemoteEnded& ended) {
  if (!has_begun())
    return;
  TaskEnd end = ended.end;
  if (tasks_.erase(end.exit.exit.id) == 0)
    return give_up(cat("expected ends of tasks that it runs, got one of ", end.exit.exit.id));
  end.exit.exit.at = Clock::now();
  events_.on_end(std::move(end));
}

// A task's output goes into its log here. A log that cannot be written costs the log alone.
void RemoteHost::take(const RemoteOutput& output) {
  if (!has_begun())
    return;
  const auto found = tasks_.find(output.id);
  if (found == tasks_.end() || found->second.log_failed)
    return;
  try {
    write_all(found->second.log_fd, output.bytes);
  } catch (const Error& error) {
    found->second.log_failed = true;
    events_.on_note(cat("host ", name(), ": a task's log is cut off: ", error.message()));
  }
}

// A GPU that the run does not use may be anybody's.
void RemoteHost::take(const RemoteHeld& held) {
  if (!has_begun())
    return;
  const PoolHost& host = pool_->hosts()[host_];
  const auto gpu = host.find_gpu(held.gpu);
  if (!gpu)
    return;
  const int index = host.gpus[*gpu].index.value;
  held_[*gpu] = cat("GPU ", index, " of ", name(), " is ", printable(held.by));
  if (held.units == 0)
    held_.erase(*gpu);
  events_.on_held(*gpu, std::min(held.units, kWholeGpu), held.by);
}

std::string RemoteHost::held() const {
  return join(std::views::values(held_), ", ");
}

// Reads what the command prints on standard error. A line that is too long is told in pieces.
void RemoteHost::read_errors() {
  char buffer[4096];
  const ssize_t n = ::read(errors_.get(), buffer, sizeof(buffer));
  if (n < 0 && (is_one_of(errno, EAGAIN, EINTR)))
    return;
  if (n <= 0) {
    if (loop_ != nullptr)
      loop_->cancel(watches_errors_);
    return;
  }
  error_text_.append(buffer, n);
  size_t end = error_text_.find('\n');
  while (end != npos || error_text_.size() > kLongestErrorLine) {
    const size_t length = std::min({end, error_text_.size(), kLongestErrorLine});
    take_error_line(error_text_.substr(0, length));
    error_text_.erase(0, length == end ? length + 1 : length);
    end = error_text_.find('\n');
  }
}

// The last line is kept, for when the connection ends.
void RemoteHost::take_error_line(const std::string& line) {
  if (trim(line).empty())
    return;
  last_error_ = std::string(trim(printable(line)));
  if (events_.on_note)
    events_.on_note(cat("host ", name(), ": ", last_error_));
}

// Whether the command's process has ended; it is not waited for by that.
bool RemoteHost::has_ended_within(milliseconds patience) const {
  pollfd waits = {.fd = child_.pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waits, 1, static_cast<int>(patience.count())) > 0;
}

// Says how the command ended. Its output has ended, so that the command is about to.
std::string RemoteHost::how_it_ended() {
  const auto program = file_name(options_.argv[0]);
  has_ended_within(kTellsItsEndWithin);
  siginfo_t info{};
  const int rc = ::waitid(P_PIDFD, child_.pidfd.get(), &info, WEXITED | WNOWAIT | WNOHANG);
  const bool has_ended = rc == 0 && info.si_pid == child_.pid;
  auto text = cat("the connection by ", program, " ended");
  if (has_ended && info.si_code == CLD_EXITED) {
    text = cat(program, " ended with exit code ", info.si_status);
    options_.advice = text_or(advice_for_shell(info.si_status), options_.advice);
  } else if (has_ended) {
    text = cat(program, " was killed by ", signal_name(info.si_status));
  }
  if (errors_.valid() && watches_errors_ != 0)
    read_errors();
  return cat(text, framed(" (", last_error_, ")"));
}

std::string RemoteHost::how_silent(milliseconds time) const {
  return cat("none in ", format_duration(time), framed(" (", last_error_, ")"));
}

// The host is lost, once. Its tasks' ends are told in the order in which they were started.
void RemoteHost::give_up(const std::string& why) {
  if (!problem_.empty())
    return;
  problem_ = text_or(why, "it is gone");
  leave_loop();
  // The server finds the end of its input, or hears nothing more, and ends what it has.
  ::kill(-child_.pid, SIGKILL);
  if (events_.on_lost)
    events_.on_lost(problem_);
  const auto known = std::views::keys(tasks_);
  Ints ids(known.begin(), known.end());
  std::ranges::sort(ids);
  tasks_.clear();
  held_.clear();
  for (const int id : ids) {
    TaskEnd end{.kind = TaskEnd::Kind::lost, .why_not = cat("host ", name(), " was lost")};
    end.exit.exit = {.id = id, .exit_code = 1, .at = Clock::now()};
    events_.on_end(std::move(end));
  }
}

// The server numbers GPUs in its own way: they go by their UUIDs.
void RemoteHost::start(const StartOrder& order) {
  if (!problem_.empty())
    throw unavailable("host ", name(), ": expected a host that is there, got ", problem_);
  const PoolHost& host = pool_->hosts()[host_];
  RemoteStart start{.id = order.id,
                    .task = {.name = order.task->name,
                             .argv = order.task->argv,
                             .environment = order.task->environment,
                             .directory = order.task->directory,
                             .ranks = order.task->ranks},
                    .attempt = order.attempt,
                    .units = order.where->units,
                    .memory_bytes = order.where->memory_bytes,
                    .cpus = threads_of(*pool_, *order.where),
                    .bound = order.where->bound,
                    .log = order.log};
  start.gpus = mapped(order.where->gpus, [&](int gpu) { return host.gpus[gpu].uuid.value; });
  tasks_[order.id] = {.log_fd = order.log_fd};
  channel_->send(to_line(start));
}

void RemoteHost::end(int id, milliseconds grace) {
  if (tasks_.contains(id))
    channel_->send(to_line(RemoteEnd{.id = id, .grace = grace}));
}

void RemoteHost::signal_all(int signal) {
  if (problem_.empty())
    channel_->send(to_line(RemoteSignal{.signal = signal}));
}

// The server ends when it finds the end of its input.
void RemoteHost::close() {
  leave_loop();
  channel_->close_output();
  events_ = {};
}

// Nobody is told that the host is given up: it has no events and no tasks any more.
void RemoteHost::abandon() {
  events_ = {};
  tasks_.clear();
  give_up("nobody waits for it any more");
}

bool RemoteHost::wait_for_end(milliseconds patience) {
  if (child_.pid <= 0)
    return true;
  if (!has_ended_within(patience))
    return false;
  ::waitpid(child_.pid, nullptr, 0);
  child_.pid = -1;
  return true;
}

namespace {

std::string why_no_answer(const RemoteHost& host) {
  const std::string got = host.answered() ? host.problem() : host.how_silent(kConnectWithin);
  return cat("host ",
             host.name(),
             ": expected an answer of muster there, got ",
             got,
             framed("; ", host.options().advice));
}

// Nothing may be said for a minute otherwise.
void tell_who_is_waited_for(const RemoteHosts& hosts) {
  constexpr size_t kMostNamed = 4;
  Strings names;
  for (const auto& host : hosts) {
    if (!host->answered())
      names.push_back(host->name());
  }
  const char* const hosts_word = word_for(names.size(), "host ", "hosts ");
  if (!names.empty())
    log_info("waiting for the answer of ", hosts_word, join_first(names, ", ", kMostNamed));
}

}  // namespace

RemoteHosts connect_hosts(const std::vector<RemoteHostOptions>& options) {
  EventLoop loop;
  RemoteHosts hosts;
  hosts.reserve(options.size());
  for (const RemoteHostOptions& each : options) {
    hosts.push_back(std::make_unique<RemoteHost>(each));
    hosts.back()->listen(loop);
  }
  const auto until = Clock::now() + kConnectWithin;
  const auto has_answered = [](const auto& host) {
    return host->answered();
  };
  for (auto next_word = Clock::now() + kFirstWord;
       !all_of(hosts, has_answered) && Clock::now() < until;) {
    loop.run_once(std::min(until, next_word));
    if (Clock::now() < next_word)
      continue;
    next_word = Clock::now() + kFurtherWords;
    tell_who_is_waited_for(hosts);
  }
  Strings problems =
      mapped(hosts | std::views::filter([&](const auto& host) { return !host->inventory(); }),
             [&](const auto& host) { return why_no_answer(*host); });
  if (!problems.empty())
    throw unavailable(join(problems, "\n"));
  return hosts;
}

void close_hosts(const RemoteHosts& hosts) {
  for (const auto& host : hosts) {
    if (host)
      host->close();
  }
  const Deadline deadline(kCloseWithin);
  for (const auto& host : hosts) {
    if (host)
      host->wait_for_end(deadline.left());
  }
}

}  // namespace muster
