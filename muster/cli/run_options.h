// `muster run`'s flags as they were typed, and their meaning as LaunchOptions. Pure, but for a look
// at whether a Python script is there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/launch/launch.h"
#include "muster/placement/network_order.h"

namespace muster {

struct RunFlags {
  Strings config_files;  // --config

  // torchrun's, with its defaults.
  std::string nnodes = "1:1";
  std::string nproc_per_node;  // empty: one rank per device (torchrun: 1)
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";
  std::string rdzv_conf;
  bool standalone = false;
  std::optional<int> max_restarts;
  double monitor_interval = 0.1;
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string role = "default";
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string log_line_prefix_template;
  std::string local_ranks_filter;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;
  std::string logs_specs;
  std::string print_completion;
  std::optional<int> node_rank{};
  std::string master_addr;  // empty: torchrun's default for the case
  std::optional<int> master_port{};
  std::string local_addr;
  std::string numa_binding = "none";
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string shutdown_timeout;
  bool virtual_local_rank = false;
  // muster's own.
  std::string gpus;
  int gpus_per_rank = 1;
  std::string policy;
  std::string map;
  std::string map_command;
  std::string scores;
  std::string rank_memory;
  std::string hosts;
  std::string mesh;
  std::string topology;
  SwitchPaths switches;  // read_topology() reads them from the file `topology`
  int64_t global_batch = 0;
  std::string plan;
  std::string svg;
  bool no_lease = false;
  bool no_gpu_check = false;
  std::string wait;  // empty: do not; "forever"
  std::string surplus = "error";
  std::string visibility;  // empty: job, or own with virtual_local_rank
  int cpu_slots = 0;
  std::string run_dir;
  std::string work_dir;
  std::string timeout;
  std::string stopped_timeout;
  std::string on_failure;  // empty: MUSTER_ON_FAILURE, or else end
  std::string collective_timeout;
  std::string trace;  // empty: MUSTER_TRACE, or none
  Strings env;        // NAME=VALUE, or NAME
  std::string hostfile;
  std::string host_discovery;
  std::string ssh;
  std::string remote_muster;
  std::string secret_file;
  bool no_auth = false;
  int max_host_failures = 3;
  std::string inventory;
  bool dry_run = false;
  bool json = false;
  bool quiet = false;
  bool no_collapse = false;
};

// One more program of the job, after a ":".
struct MoreProgram {
  std::string nproc;
  std::string role = "default";
  Strings program;
};

using MorePrograms = std::vector<MoreProgram>;

// `program` is PROGRAM and its arguments, as typed; `more` what follows it. Throws:
// invalid_argument naming the flag; SpawnError for a Python script that is not there.
LaunchOptions to_launch_options(const RunFlags& flags,
                                Strings program,
                                const MorePrograms& more = {});

}  // namespace muster
