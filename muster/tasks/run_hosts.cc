// This machine is a LocalHost, and its event loop serves the connections to all others. A host goes
// through three states: it is in use; it was lost, and is set aside in the schedule while a
// HostRetry connects to it again; it is back, with the new connection in the old one's place.
#include "muster/tasks/run_hosts.h"

#include <ranges>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/units.h"

namespace muster {

RunHosts::RunHosts(TaskSchedule& schedule,
                   const RunnerOptions& options,
                   RunView& view,
                   Record record)
    : schedule_(schedule),
      options_(options),
      view_(view),
      record_(std::move(record)),
      remote_(options.remote == nullptr ? none_ : *options.remote),
      local_(schedule.pool(), options_of_local()) {
  try {
    for (const int host : int_indices_of(remote_))
      begin_remote(host);
  } catch (...) {
    close_all();  // the loop is about to be gone
    throw;
  }
}

RunHosts::~RunHosts() {
  close_all();
}

void RunHosts::close_all() {
  for (const auto& host : remote_) {
    if (host)
      host->close();
  }
  retries_.clear();
}

// This machine is the pool's host that has no connection; it may be none of them.
LocalHostOptions RunHosts::options_of_local() {
  int here = remote_.empty() ? 0 : -1;
  for (const int host : int_indices_of(remote_)) {
    if (!remote_[host])
      here = host;
  }
  return {.facts = options_.facts,
          .run_id = options_.run_id,
          .host = here,
          .on_held = tell_held_of(here),
          .on_memory = tell_memory_of(here),
          .on_pass = [this](int signal) { pass_on(signal); },
          .is_foreign = [this](pid_t pid) { return is_connection(pid); }};
}

ForeignLeases::Tell RunHosts::tell_held_of(int number) {
  return [this, number](const auto&... held) {
    schedule_.set_leased(number, held...);
  };
}

MemoryWatch::Tell RunHosts::tell_memory_of(int number) {
  return [this, number](auto... used) {
    schedule_.set_memory_in_use(number, used...);
  };
}

void RunHosts::pass_on(int signal) const {
  for (const auto& host : remote_) {
    if (host)
      host->signal_all(signal);
  }
}

// Whether the child of this process is a connection, and no task's process.
bool RunHosts::is_connection(pid_t pid) const {
  const auto is_its = [pid](const auto& host) {
    return host && host->pid() == pid;
  };
  const auto is_tried = [pid](const auto& retry) {
    return retry.second.owns(pid);
  };
  return any_of(remote_, is_its) || any_of(retries_, is_tried);
}

// Begins the run on the host, for the first time; this machine needs no beginning.
void RunHosts::begin_remote(int number) {
  const auto& host = remote_[number];
  if (!host)
    return;
  retries_.emplace(number, HostRetry(*host, schedule_.pool().hosts()[number]));
  marks_[number] = options_.earlier;
  marks_[number].push_back(options_.facts.mark);
  begin(number, *host);
}

// The server of the lost connection may still be there, with tasks. It ends what bears its own mark
// and the new one ends the same first, so that what runs from now on bears another.
void RunHosts::begin_again(int number, RemoteHost& host) {
  const auto mark = cat(options_.facts.mark, ".", ++num_marks_);
  record_(mark);
  for (const int gpu : int_indices_of(schedule_.pool().hosts()[number].gpus))
    schedule_.set_leased(number, gpu, 0, "");  // what others hold is told anew
  marks_[number].push_back(mark);
  begin(number, host);
}

// Every host has marks of its own: hosts that share a process table (containers) must not end each
// other's tasks.
void RunHosts::begin(int number, RemoteHost& host) {
  auto marks =
      mapped(marks_[number], [&](const auto& mark) { return cat(mark, "@", host.name()); });
  const std::string mark = marks.back();
  marks.pop_back();
  const RemoteBegin run{.run_id = options_.run_id,
                        .run_dir = options_.facts.run_dir,
                        .mark = mark,
                        .earlier = std::move(marks),
                        .grace = options_.facts.grace,
                        .lease = options_.facts.lease,
                        .visibility = options_.facts.visibility};
  RemoteEvents events{.on_end = [this](TaskEnd end) { remote_ends_.push_back(std::move(end)); },
                      .on_held = tell_held_of(number),
                      .on_memory = tell_memory_of(number),
                      .on_note = [this](const auto& text) { view_.note(text); },
                      .on_lost = [this, number](const auto& why) { on_lost(number, why); }};
  host.begin(run, schedule_.pool(), number, local_.loop(), std::move(events));
}

// The host's tasks are tried elsewhere, or there again. The run goes on with the other hosts.
void RunHosts::on_lost(int number, const std::string& why) {
  const PoolHost& host = schedule_.pool().hosts()[number];
  if (host.set_aside)
    return;  // a try has failed, which is no news
  schedule_.set_aside(number);
  // Whoever has stopped it there wants the host for something else.
  const bool stopped = remote_[number]->refusal() == RemoteHost::Refusal::stopped;
  if (!stopped)
    retries_.at(number).begin();
  const char* const next = stopped ? "" : " and tried again";
  view_.note(cat("host ", host.name, ": ", why, "; it is set aside", next));
}

// Each host that was lost is looked at once, and goes on by one step.
void RunHosts::try_lost() {
  for (auto& [number, retry] : retries_) {
    switch (retry.step(local_.loop())) {
      case HostRetry::Step::nothing:
        break;
      case HostRetry::Step::begun:
        local_.reap_orphans();  // an ssh that was killed leaves its own helpers to us
        break;
      case HostRetry::Step::answered:
        begin_again(number, retry.connection());
        break;
      case HostRetry::Step::unfit:
        view_.note(cat("host ",
                       schedule_.pool().hosts()[number].name,
                       " answers again, and stays set aside: ",
                       retry.unfit()));
        break;
      case HostRetry::Step::ready:
        take_back(number, retry);
    }
  }
}

// The new connection takes the lost one's place.
void RunHosts::take_back(int number, HostRetry& retry) {
  auto& connection = remote_[number];
  connection = retry.exchange(std::move(connection));
  schedule_.bring_back(number);
  view_.note(cat("host ", connection->name(), " is back"));
}

void RunHosts::stop_trying() {
  for (auto& [number, retry] : retries_)
    retry.stop();
}

bool RunHosts::tries_any() const {
  return any_of(retries_, [](const auto& retry) { return retry.second.trying(); });
}

Strings RunHosts::lost() const {
  return mapped(remote_ | std::views::filter(
                              [&](const auto& host) { return host && !host->problem().empty(); }),
                [&](const auto& host) { return cat(host->name(), ": ", host->problem()); });
}

TaskHost& RunHosts::at(int host) {
  if (remote_.empty() || !remote_[host])
    return local_;
  return *remote_[host];
}

bool RunHosts::ready() const {
  return all_of(remote_, [](const auto& host) { return !host || host->ready(); });
}

// The loop of this machine calls the handlers of all others meanwhile.
TaskEnds RunHosts::wait(TimePoint until) {
  TaskEnds ends = local_.wait(until);
  append_all(ends, std::exchange(remote_ends_, {}));
  return ends;
}

std::string RunHosts::held() const {
  Strings texts = {local_.held()};
  for (const auto& host : remote_) {
    if (host)
      texts.push_back(host->held());
  }
  texts.push_back(memory_in_use());
  std::erase(texts, "");
  return join(texts, ", ");
}

// "GPU 0 of b has 3.0 GiB free of 80.0 GiB", for each GPU whose memory a task waits for; empty
// while anything runs. Only where nothing runs are other programs alone in the way. A little is in
// use on every GPU, by the driver, so that what counts is whether less is free than a task asks
// for.
std::string RunHosts::memory_in_use() const {
  Strings lines;
  if (schedule_.count(TaskState::running) > 0)
    return {};
  const PoolHosts& hosts = schedule_.pool().hosts();
  for (const int h : int_indices_of(hosts)) {
    if (hosts[h].set_aside)
      continue;
    const auto of_host = hosts.size() > 1 ? cat(" of ", hosts[h].name) : "";
    for (const int g : int_indices_of(hosts[h].gpus)) {
      if (!schedule_.waits_for_memory_of(h, g))
        continue;
      const PoolGpu& gpu = hosts[h].gpus[g];
      const auto free = format_bytes(gpu.memory_left);
      const auto all = format_bytes(gpu.memory_bytes);
      lines.push_back(cat("GPU ", gpu.index.value, of_host, " has ", free, " free of ", all));
    }
  }
  return join(lines, ", ");
}

// A note says when others begin to hold something, and not how that changes.
void RunHosts::look() {
  local_.look();
  if (schedule_.waits_for_memory())
    local_.look_at_memory();
  const auto text = held();
  if (!text.empty() && !any_held_)
    view_.note(cat("some GPUs are held, and left to their holders: ", text));
  any_held_ = !text.empty();
}

}  // namespace muster
