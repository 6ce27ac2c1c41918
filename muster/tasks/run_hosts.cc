#include "muster/tasks/run_hosts.h"

#include <algorithm>
#include <iterator>

#include "muster/base/strings.h"

namespace muster {

RunHosts::RunHosts(Schedule& schedule, const RunnerOptions& options, RunView& view)
    : schedule_(schedule), options_(options), view_(view), local_(schedule.pool(), options_of_local()) {
  try {
    for (size_t host = 0; host < options.remote.size(); ++host) begin_remote(static_cast<int>(host));
  } catch (...) {
    close_all();  // they are not to have a loop that is gone
    throw;
  }
}

RunHosts::~RunHosts() {
  close_all();
}

void RunHosts::close_all() {
  for (RemoteHost* const host : options_.remote) {
    if (host != nullptr) host->close();
  }
}

LocalHostOptions RunHosts::options_of_local() {
  int here = options_.remote.empty() ? 0 : -1;
  for (size_t host = 0; host < options_.remote.size(); ++host) {
    if (options_.remote[host] == nullptr) here = static_cast<int>(host);
  }
  return {.facts = options_.facts,
          .run_id = options_.run_id,
          .host = here,
          .on_held = [this, here](int gpu, int units,
                                  const std::string& by) { schedule_.set_held(here, gpu, units, by); },
          .on_pass =
              [this](int signal) {
                for (RemoteHost* const host : options_.remote) {
                  if (host != nullptr) host->signal_all(signal);
                }
              }};
}

void RunHosts::begin_remote(int number) {
  RemoteHost* const host = options_.remote[static_cast<size_t>(number)];
  if (host == nullptr) return;
  // Marks of its own: hosts that share a process table (containers) must not end each other's.
  const auto of_host = [&](const std::string& agent) { return cat(agent, "@", host->name()); };
  std::vector<std::string> earlier;
  for (const std::string& agent : options_.earlier) earlier.push_back(of_host(agent));
  host->begin(
      {.run_id = options_.run_id,
       .run_dir = options_.facts.run_dir,
       .agent = of_host(options_.facts.agent),
       .earlier = std::move(earlier),
       .grace = options_.facts.grace,
       .lease = options_.facts.lease},
      schedule_.pool(), number, local_.loop(),
      {.on_end = [this](TaskEnd end) { remote_ends_.push_back(std::move(end)); },
       .on_held = [this, number](int gpu, int units,
                                 const std::string& by) { schedule_.set_held(number, gpu, units, by); },
       .on_note = [this](const std::string& text) { view_.note(text); },
       .on_lost = [this, number](const std::string& why) { on_lost(number, why); }});
}

// What ran there is tried elsewhere; the run goes on with the other hosts.
void RunHosts::on_lost(int number, const std::string& why) {
  schedule_.set_aside(number);
  lost_.push_back(cat(schedule_.pool().hosts()[static_cast<size_t>(number)].name, ": ", why));
  view_.note(cat("host ", lost_.back(), "; it is set aside"));
}

TaskHost& RunHosts::at(int host) {
  if (options_.remote.empty()) return local_;
  RemoteHost* const remote = options_.remote[static_cast<size_t>(host)];
  return remote == nullptr ? static_cast<TaskHost&>(local_) : *remote;
}

bool RunHosts::ready() const {
  return std::all_of(options_.remote.begin(), options_.remote.end(),
                     [](const RemoteHost* host) { return host == nullptr || host->ready(); });
}

std::vector<TaskEnd> RunHosts::wait(Clock::time_point until) {
  std::vector<TaskEnd> ends = local_.wait(until);
  ends.insert(ends.end(), std::make_move_iterator(remote_ends_.begin()),
              std::make_move_iterator(remote_ends_.end()));
  remote_ends_.clear();
  return ends;
}

std::string RunHosts::held() const {
  std::string text = local_.held();
  for (const RemoteHost* const host : options_.remote) {
    const std::string there = host == nullptr ? std::string() : host->held();
    if (!there.empty()) text += cat(text.empty() ? "" : ", ", there);
  }
  return text;
}

void RunHosts::look() {
  local_.look();
  const std::string text = held();
  if (!text.empty() && !any_held_) view_.note(cat("other jobs have GPUs that are waited for: ", text));
  any_held_ = !text.empty();
}

}  // namespace muster
