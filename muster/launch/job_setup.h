// What a job's part on one host needs before its ranks start: programs that exist, a folder, a
// place to meet, leases. Made by the launcher and kept until the job has ended.
#pragma once

#include <string>

#include "muster/base/folder_lock.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/launch/lease.h"
#include "muster/launch/rank_rendezvous.h"
#include "muster/launch/rank_spec.h"

namespace muster {

// A random UUID, version 4.
std::string make_uuid();

// The run's folder, or the name of one below runs/ when none is asked for: the job's id, or a new
// one when that is "none", which many jobs have.
std::string run_folder_of(const LaunchOptions& options);

// Throws: invalid_argument for what is no folder of this host; empty stands for this one.
void check_work_dir(const std::string& path);

// To be called before anything is waited for. Throws: invalid_argument where a start would move or
// replace what no earlier run has left in the run's folder, or in that of its logs.
void check_folders(const LaunchOptions& options);

// The paths of the programs that `options` name, in their order. Throws: SpawnError for the first
// that is not there or cannot be executed.
Strings program_paths(const LaunchOptions& options);

// The MASTER_PORT at which strangers are to be watched for; 0: none, as ranks of a program that
// starts itself meet in muster's own store.
int watched_port(const LaunchOptions& options, const JobFacts& job);

// A function that pauses for a moment at each call, and returns false once two seconds have passed.
Condition brief_patience();

class JobSetup {
 public:
  // Makes the run's folder, and locks it for this start of the job. `start`: its id, of a job of
  // several hosts; empty: one of its own. Throws: SpawnError (no such program), io,
  // invalid_argument (master address; as check_folders), failed_precondition (another job has the
  // folder).
  JobSetup(const LaunchOptions& options,
           RankRendezvous rendezvous,
           int cores,
           const std::string& start = "");

  // Executes this plan from now on: writes plan.json, keeps the leases and lets those before go. A
  // part of a plan has a file of its own for each launcher, as hosts may share the run's folder.
  void use_plan(const Plan& plan, Leases leases);

  // This host's ranks go on in another plan: keeps the leases.
  void change_plan(const Plan& plan);

  // Several hosts: which one this is, and where its ranks meet, which may be on another.
  void use_place(int host_index,
                 const std::string& master_addr,
                 int master_port,
                 const std::string& store);

  void count_restarts(int restarts) { facts_.restart_count = restarts; }
  void use_launch(const std::string& launch) { facts_.launch = launch; }

  const JobFacts& facts() const { return facts_; }

  // This launcher's own store: with one host, that in which the job's ranks meet. Throws:
  // unavailable.
  SharedStore open_store() const { return rendezvous_.open(); }

  // Descriptors that every rank inherits.
  Ints inherited_fds() const;

  // Removes this launcher's part of a plan, which nobody needs when its ranks have ended.
  void remove_part() const;

  // Removes the folders of logs that hold nothing.
  void remove_empty_folders() const;

  // Removes these, and the run's folder if this launcher made it and nothing is in it but plan.json
  // and run.json. Launchers of other hosts may have the folder too: while one has, `wait` is
  // called, and if that returns false, the folder stays. Blocking.
  void remove_unused_folders(const Condition& wait = brief_patience()) const;

 private:
  void take_folders(const std::string& given_plan);
  bool have_others_left(const Condition& wait) const;

  JobFacts facts_;
  RankRendezvous rendezvous_;
  Leases leases_;  // held as long as the job is
  bool is_new_folder_ = false;
  std::string latest_before_;
  FolderLock lock_;
  FolderLock log_lock_;  // where the logs are elsewhere
};

}  // namespace muster
