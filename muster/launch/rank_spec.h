// The start of one rank: the third of the launcher's values (Inventory → Plan → RankSpec
// → RankExit). A pure function of the plan and what the job has decided; no I/O.
#pragma once

#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/launch/launch.h"
#include "muster/placement/plan.h"

namespace muster {

// All that the launcher has decided and set up before any rank starts.
struct JobFacts {
  std::string run_id;
  std::string mark;    // this launcher's own id: what its ranks' descendants are known by
  std::string launch;  // MUSTER_LAUNCH: one id for all hosts and attempts of this start of the job
  int host_index = 0;  // this host's place in the plan
  int restart_count = 0;    // restarts after failures; an attempt may have other reasons
  std::string program;      // the path of what argv[0] names
  Strings more_programs{};  // and of what LaunchOptions::more_programs do
  std::string run_dir;      // absolute
  std::string work_dir;   // absolute; where the ranks write: the task's they belong to, or run_dir
  std::string log_dir;    // absolute; attempts are folders in it
  std::string plan_path;  // absolute
  std::string master_addr;
  int master_port = 0;
  std::string interface{};    // on the way to the ranks of other hosts; empty: none, or loopback
  std::string store;          // MUSTER_STORE: where all ranks meet
  std::string agent_store{};  // MUSTER_AGENT_STORE: this launcher's own
  int secret_fd = -1;
  std::string leases;        // MUSTER_LEASE_FD
  int cores = 1;             // of this host, for all its ranks
  bool on_terminal = false;  // a person watches the launcher's standard error
  Environment environment;   // the launcher's own, which ranks inherit
};

// The ways that one stream of a rank goes. None: /dev/null.
struct StreamTarget {
  bool console = true;
  std::string file;
};

struct RankSpec {
  int rank = 0;
  int local_rank = 0;
  int attempt = 0;
  std::string host;
  std::string device;
  Strings argv;
  std::string program;              // the path of what is executed
  Environment environment{};        // the whole of it
  std::string working_directory{};  // empty: the launcher's
  StreamTarget out;
  StreamTarget err;
  std::string prefix;     // of its lines on the console
  bool collapse = false;  // lines that several ranks say become one, on a terminal
  std::string error_file;
  Ints cpus{};  // to keep it on; empty: not bound
};

using RankSpecs = std::vector<RankSpec>;

// One spec per rank of host job.host_index, in rank order; of every host when the plan is
// simulated. Throws: invalid_argument for a bad --redirects or --tee.
RankSpecs make_rank_specs(const Plan& plan,
                          const LaunchOptions& options,
                          const JobFacts& job,
                          int attempt);

// Sets or erases the variables by which the driver's libraries choose GPUs.
void show_devices(const Plan& plan, const RankPlan& rank, Environment& variables);

// torchrun's form of --redirects and --tee for one local rank: 0 none, 1 stdout, 2 stderr, 3 both.
// Throws: invalid_argument naming `flag`.
int stream_bits(const std::string& text, int local_rank, const char* flag);

// `text` with ${name} and $name replaced (as Python's Template.safe_substitute: an unknown name
// stays).
std::string substitute(const std::string& text, const Environment& values);

}  // namespace muster
