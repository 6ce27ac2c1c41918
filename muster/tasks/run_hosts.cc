#include "muster/tasks/run_hosts.h"

#include <algorithm>
#include <iterator>

#include "muster/base/strings.h"
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
    for (size_t host = 0; host < remote_.size(); ++host)
      begin_remote(static_cast<int>(host));
  } catch (...) {
    close_all();  // they are not to have a loop that is gone
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

LocalHostOptions RunHosts::options_of_local() {
  int here = remote_.empty() ? 0 : -1;
  for (size_t host = 0; host < remote_.size(); ++host) {
    if (!remote_[host])
      here = static_cast<int>(host);
  }
  return {
      .facts = options_.facts,
      .run_id = options_.run_id,
      .host = here,
      .on_held =
          [this, here](int gpu, int units, const std::string& by) {
            schedule_.set_leased(here, gpu, units, by);
          },
      .on_memory = [this, here](int gpu,
                                uint64_t bytes) { schedule_.set_memory_in_use(here, gpu, bytes); },
      .on_pass =
          [this](int signal) {
            for (const auto& host : remote_) {
              if (host)
                host->signal_all(signal);
            }
          },
      .is_foreign = [this](pid_t pid) { return is_connection(pid); }};
}

bool RunHosts::is_connection(pid_t pid) const {
  return std::ranges::any_of(remote_,
                             [pid](const auto& host) { return host && host->pid() == pid; }) ||
         std::ranges::any_of(retries_, [pid](const auto& retry) { return retry.second.owns(pid); });
}

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
  const std::string mark = cat(options_.facts.mark, ".", ++num_marks_);
  record_(mark);
  for (size_t gpu = 0; gpu < schedule_.pool().hosts()[number].gpus.size(); ++gpu)
    schedule_.set_leased(number, static_cast<int>(gpu), 0, "");  // what others hold is told anew
  marks_[number].push_back(mark);
  begin(number, host);
}

void RunHosts::begin(int number, RemoteHost& host) {
  // Marks of its own: hosts that share a process table (containers) must not end each other's.
  std::vector<std::string> marks;
  for (const std::string& mark : marks_[number])
    marks.push_back(cat(mark, "@", host.name()));
  const std::string mark = marks.back();
  marks.pop_back();
  host.begin({.run_id = options_.run_id,
              .run_dir = options_.facts.run_dir,
              .mark = mark,
              .earlier = std::move(marks),
              .grace = options_.facts.grace,
              .lease = options_.facts.lease,
              .visibility = options_.facts.visibility},
             schedule_.pool(),
             number,
             local_.loop(),
             {.on_end = [this](TaskEnd end) { remote_ends_.push_back(std::move(end)); },
              .on_held =
                  [this, number](int gpu, int units, const std::string& by) {
                    schedule_.set_leased(number, gpu, units, by);
                  },
              .on_memory = [this, number](
                               int gpu,
                               uint64_t bytes) { schedule_.set_memory_in_use(number, gpu, bytes); },
              .on_note = [this](const std::string& text) { view_.note(text); },
              .on_lost = [this, number](const std::string& why) { on_lost(number, why); }});
}

// What ran there is tried elsewhere, or there again; the run goes on with the other hosts.
void RunHosts::on_lost(int number, const std::string& why) {
  const PoolHost& host = schedule_.pool().hosts()[number];
  if (host.set_aside)
    return;  // a try, of which its end is no news
  schedule_.set_aside(number);
  // Who has stopped it there wants the host for something else.
  const bool stopped = remote_[number]->refusal() == RemoteHost::Refusal::stopped;
  if (!stopped)
    retries_.at(number).begin();
  view_.note(
      cat("host ", host.name, ": ", why, "; it is set aside", stopped ? "" : " and tried again"));
}

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
  return std::ranges::any_of(retries_, [](const auto& retry) { return retry.second.trying(); });
}

std::vector<std::string> RunHosts::lost() const {
  std::vector<std::string> lost;
  for (const auto& host : remote_) {
    if (host && !host->problem().empty())
      lost.push_back(cat(host->name(), ": ", host->problem()));
  }
  return lost;
}

TaskHost& RunHosts::at(int host) {
  if (remote_.empty() || !remote_[host])
    return local_;
  return *remote_[host];
}

bool RunHosts::ready() const {
  return std::ranges::all_of(remote_, [](const auto& host) { return !host || host->ready(); });
}

std::vector<TaskEnd> RunHosts::wait(Clock::time_point until) {
  std::vector<TaskEnd> ends = local_.wait(until);
  ends.insert(ends.end(),
              std::make_move_iterator(remote_ends_.begin()),
              std::make_move_iterator(remote_ends_.end()));
  remote_ends_.clear();
  return ends;
}

std::string RunHosts::held() const {
  std::string text = local_.held();
  for (const auto& host : remote_) {
    const std::string there = host ? host->held() : std::string();
    if (!there.empty())
      text += cat(text.empty() ? "" : ", ", there);
  }
  const std::string memory = memory_in_use();
  return cat(text, text.empty() || memory.empty() ? "" : ", ", memory);
}

// Of all hosts, where nothing runs: then only other programs can be in the way of a task that waits
// for memory. They are where less is free than it asks for; a little is in use on every GPU, by the
// driver.
std::string RunHosts::memory_in_use() const {
  std::vector<std::string> lines;
  if (schedule_.count(TaskState::running) > 0)
    return {};
  const std::vector<PoolHost>& hosts = schedule_.pool().hosts();
  for (size_t h = 0; h < hosts.size(); ++h) {
    if (hosts[h].set_aside)
      continue;
    for (size_t g = 0; g < hosts[h].gpus.size(); ++g) {
      if (!schedule_.waits_for_memory_of(static_cast<int>(h), static_cast<int>(g)))
        continue;
      const PoolGpu& gpu = hosts[h].gpus[g];
      lines.push_back(cat("GPU ",
                          gpu.index.value,
                          hosts.size() > 1 ? cat(" of ", hosts[h].name) : "",
                          " has ",
                          format_bytes(gpu.memory_left),
                          " free of ",
                          format_bytes(gpu.memory_bytes)));
    }
  }
  return join(lines, ", ");
}

void RunHosts::look() {
  local_.look();
  if (schedule_.waits_for_memory())
    local_.look_at_memory();
  const std::string text = held();
  if (!text.empty() && !any_held_)
    view_.note(cat("some GPUs are held, and left to their holders: ", text));
  any_held_ = !text.empty();
}

}  // namespace muster
