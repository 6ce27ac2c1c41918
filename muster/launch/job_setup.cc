// A job's folder may have been used before, and may be used by launchers of several hosts at once.
// take_folders locks it for this start, and only the first launcher of a start makes way for it:
// earlier logs move aside, and an earlier failure.json goes. A folder that no run has left such
// files in is refused (earlier_run.h).
#include "muster/launch/job_setup.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/folders.h"
#include "muster/base/hex.h"
#include "muster/base/named_file.h"
#include "muster/base/random_bytes.h"
#include "muster/base/route.h"
#include "muster/base/text_of.h"
#include "muster/launch/earlier_run.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/lease_plan.h"
#include "muster/launch/run_folder.h"
#include "muster/placement/plan_json.h"
#include "muster/supervise/child.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// An id as the name of one folder.
std::string folder_name(std::string id) {
  std::ranges::replace(id, '/', '_');
  if (id == "latest")
    return "_latest";  // runs/latest is the link to the newest run
  return is_one_of(id, ".", "..") ? "_" : id;
}

std::string plan_path_of(const std::string& run_dir) {
  return run_dir + "/plan.json";
}

// Parts of plans lie there, each with its launcher's mark in its name.
std::string parts_folder_of(const std::string& run_dir) {
  return cat(run_dir, "/", kPlanParts);
}

// The network interface on the route to that host; empty: there is none, or loopback. Where there
// is no route the ranks cannot meet either, and say so themselves.
std::string interface_towards(const std::string& host) {
  try {
    const auto address = address_towards(host);
    return is_loopback_address(address) ? std::string() : interface_with(address);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

// The bits that are not random are the version's and the variant's.
std::string make_uuid() {
  std::string bytes = random_bytes(16);
  bytes[6] = static_cast<char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<char>((bytes[8] & 0x3f) | 0x80);
  return uuid_text(bytes);
}

std::string run_folder_of(const LaunchOptions& options) {
  if (!options.run_dir.empty())
    return options.run_dir;
  return "runs/" + folder_name(options.run_id == "none" ? make_uuid() : options.run_id);
}

namespace {

// Where the logs of a job go whose folder is `run_dir`. In a folder for logs each job has one of
// its own.
std::string log_folder_of(const LaunchOptions& options, const std::string& run_dir) {
  if (options.log_dir.empty())
    return run_dir + "/logs";
  const std::string id =
      options.run_id == "none" ? fs::path(run_dir).filename().string() : options.run_id;
  return absolute_path(options.log_dir) + "/" + folder_name(id);
}

bool are_logs_elsewhere(const std::string& log_dir, const std::string& run_dir) {
  return log_dir != run_dir + "/logs";
}

void make_logs_folder(const std::string& log_dir) {
  std::error_code error;
  fs::create_directories(log_dir, error);
  if (error)
    refuse_named("--log-dir", kNewFolder, log_dir, error.message());
}

void check_folders_of(const std::string& run_dir,
                      const std::string& log_dir,
                      const std::string& given_plan) {
  check_run_folder(run_dir, given_plan);
  if (are_logs_elsewhere(log_dir, run_dir))
    check_log_folder(log_dir);
}

}  // namespace

void check_folders(const LaunchOptions& options) {
  const auto run_dir = resolve_run_folder(run_folder_of(options));
  check_folders_of(run_dir, log_folder_of(options, run_dir), options.plan);
}

void check_work_dir(const std::string& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error))
    return;
  throw invalid_argument("--workdir: expected a folder, got '",
                         printable(path),
                         "' (",
                         error ? error.message() : "a file",
                         "); make it first");
}

// Paths are absolute where the ranks run in another folder.
Strings program_paths(const LaunchOptions& options) {
  const auto path_of = [&](const std::string& name) {
    const auto path = find_program(name, get_env("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
    return options.work_dir.empty() ? path : absolute_path(path);
  };
  Strings paths = {path_of(options.program.empty() ? options.argv.at(0) : options.program)};
  for (const ProgramRanks& more : options.more_programs)
    paths.push_back(path_of(more.argv.at(0)));
  return paths;
}

int watched_port(const LaunchOptions& options, const JobFacts& job) {
  return options.program.empty() ? job.master_port : 0;
}

JobSetup::JobSetup(const LaunchOptions& options,
                   RankRendezvous rendezvous,
                   int cores,
                   const std::string& start)
    : rendezvous_(std::move(rendezvous)) {
  facts_.more_programs = program_paths(options);
  facts_.program = facts_.more_programs.front();
  facts_.more_programs.erase(facts_.more_programs.begin());
  check_work_dir(options.work_dir);
  facts_.run_id = options.run_id;
  facts_.mark = make_uuid();
  facts_.launch = text_or(start, facts_.mark);
  facts_.run_dir = resolve_run_folder(run_folder_of(options));
  const auto task_dir = get_env("MUSTER_TASK_DIR");
  facts_.work_dir = task_dir && options.run_dir.empty() ? *task_dir : facts_.run_dir;
  facts_.log_dir = log_folder_of(options, facts_.run_dir);
  facts_.plan_path = plan_path_of(facts_.run_dir);
  facts_.master_addr = text_or(options.master_addr, "localhost");
  facts_.master_port = rendezvous_.master_port();
  facts_.store = facts_.agent_store = rendezvous_.store();
  facts_.secret_fd = rendezvous_.secret_fd();
  facts_.cores = cores;
  facts_.environment = own_environment();
  facts_.on_terminal = ::isatty(STDERR_FILENO) != 0;
  if (!options.master_addr.empty())
    check_master_address(options.master_addr);
  take_folders(options.plan);
}

// What an earlier start has left there makes way for this one, once: the other launchers of this
// start find the folder theirs.
void JobSetup::take_folders(const std::string& given_plan) {
  const bool logs_elsewhere = are_logs_elsewhere(facts_.log_dir, facts_.run_dir);
  check_folders_of(facts_.run_dir, facts_.log_dir, given_plan);
  is_new_folder_ = make_run_folder(facts_.run_dir, &latest_before_);
  lock_ = FolderLock(facts_.run_dir, facts_.launch);
  if (logs_elsewhere) {
    make_logs_folder(facts_.log_dir);
    log_lock_ = FolderLock(facts_.log_dir, facts_.launch);
  }
  const FolderLock& lock_of_logs = logs_elsewhere ? log_lock_ : lock_;
  if (lock_of_logs.is_new_start())
    move_earlier_logs(facts_.log_dir);
  if (lock_.is_new_start()) {
    ::unlink(cat(facts_.run_dir, "/failure.json").c_str());
    if (lock_.why_not().empty()) {  // else others of this start may have written theirs
      remove_earlier_parts(facts_.run_dir);
      remove_earlier_plan(facts_.plan_path, given_plan);
    }
    const bool is_new_work_dir = is_new_folder_ && facts_.work_dir == facts_.run_dir;
    if (!is_new_work_dir) {
      remove_earlier_activity(facts_.work_dir);
      keep_earlier_trace(facts_.work_dir);
    }
  }
  lock_.share();
  log_lock_.share();
}

void JobSetup::use_plan(const Plan& plan, Leases leases) {
  leases_ = std::move(leases);
  facts_.leases = lease_variable(leases_);
  change_plan(plan);
}

// A rank whose process goes on finds its next plan in the same file.
void JobSetup::change_plan(const Plan& plan) {
  if (!plan.part)
    return write_file(facts_.plan_path, plan_to_json(plan));
  facts_.plan_path = cat(parts_folder_of(facts_.run_dir), "/", kPlanPart, facts_.mark, ".json");
  const auto write_part = [&] {
    make_folder_below(facts_.run_dir, kPlanParts);
    write_file(facts_.plan_path, plan_to_json(plan));
  };
  try {
    write_part();
  } catch (const Error&) {  // a host that leaves may have removed the folder in between
    write_part();
  }
}

// The last of the hosts that share the folder removes it.
void JobSetup::remove_part() const {
  if (facts_.plan_path == plan_path_of(facts_.run_dir))
    return;
  ::unlink(facts_.plan_path.c_str());
  ::rmdir(parts_folder_of(facts_.run_dir).c_str());
}

// The ranks' interface may be another for each place of rank 0.
void JobSetup::use_place(int host_index,
                         const std::string& master_addr,
                         int master_port,
                         const std::string& store) {
  facts_.host_index = host_index;
  facts_.master_addr = master_addr;
  facts_.master_port = master_port;
  facts_.interface = interface_towards(master_addr);
  facts_.store = store;
}

Ints JobSetup::inherited_fds() const {
  Ints fds = lease_fds(leases_);
  if (rendezvous_.secret_fd() >= 0)
    fds.push_back(rendezvous_.secret_fd());
  return fds;
}

// rmdir leaves alone what holds something.
void JobSetup::remove_empty_folders() const {
  std::error_code ignored;
  if (!fs::exists(facts_.log_dir, ignored) || fs::is_symlink(facts_.log_dir, ignored))
    return;
  for (const fs::path& attempt : paths_in(facts_.log_dir))
    ::rmdir(attempt.c_str());
  if (holds_only(facts_.log_dir, kFolderLock))
    log_lock_.remove_file();
  ::rmdir(facts_.log_dir.c_str());
}

Condition brief_patience() {
  constexpr std::chrono::seconds kPatience{2};
  return [deadline = Deadline(kPatience)] {
    std::this_thread::sleep_for(milliseconds(5));
    return !deadline.passed();
  };
}

// The launchers of other hosts, which may have the folder too, end at about the same time: they may
// still write there. Without locks nobody knows.
bool JobSetup::have_others_left(const Condition& wait) const {
  while (lock_.why_not().empty() && !lock_.try_alone()) {
    if (!wait())
      return false;
  }
  return true;
}

// Nobody waits for a folder that stays anyway.
void JobSetup::remove_unused_folders(const Condition& wait) const {
  remove_empty_folders();
  const bool may_go = is_new_folder_ && may_be_unused(facts_.run_dir);
  if (may_go && have_others_left(wait))
    remove_unused_run_folder(facts_.run_dir, latest_before_);
}

}  // namespace muster
