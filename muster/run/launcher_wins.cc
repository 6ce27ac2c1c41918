// Most options are for the launcher, and under another one nobody reads them. Two are the
// training's own, so that a program computes the same wherever it runs: the mesh and the global
// batch.
#include "muster/run/launcher_wins.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/placement/batch_shares.h"

namespace muster {

namespace {

// Gathers the names of options that differ from what they are by default.
class SetOptions {
 public:
  explicit SetOptions(const RunOptions& options) : options_(options) {}

  void add(const char* name, bool is_set) {
    if (is_set)
      names_.push_back(cat("RunOptions::", name));
  }
  template <class T>
  void add(const char* name, T RunOptions::* option) {
    add(name, options_.*option != none_.*option);
  }
  Strings names() { return std::move(names_); }

 private:
  const RunOptions& options_;
  const RunOptions none_;
  Strings names_;
};

// The ranks' number may be what the program asked for.
bool asks_for_other_ranks(const RunOptions& options, const RankEnv& env) {
  const auto& asked = options.nproc_per_node;
  return asked && asked != env.local_world_size && asked != env.world_size;
}

void add_devices(const RunOptions& options, const RankEnv& env, SetOptions& set) {
  set.add("nproc_per_node", asks_for_other_ranks(options, env));
  set.add("cpu_only", &RunOptions::cpu_only);
  set.add("gpu_only", &RunOptions::gpu_only);
  set.add("gpus", &RunOptions::gpus);
  set.add("gpus_per_rank", &RunOptions::gpus_per_rank);
  set.add("policy", &RunOptions::policy);
  set.add("map", &RunOptions::map);
  set.add("choose", options.choose != nullptr);
  set.add("scores", &RunOptions::scores);
  set.add("rank_memory", &RunOptions::rank_memory);
  // A launcher with a plan has assigned each rank its device.
  if (!env.plan.empty())
    set.add("surplus", &RunOptions::surplus);
  set.add("visibility", &RunOptions::visibility);
  set.add("numa_binding", &RunOptions::numa_binding);
  set.add("cpu_slots", &RunOptions::cpu_slots);
  set.add("inventory", &RunOptions::inventory);
  set.add("plan", &RunOptions::plan);
  set.add("wait", &RunOptions::wait);
  set.add("no_lease", &RunOptions::no_lease);
  set.add("no_gpu_check", &RunOptions::no_gpu_check);
}

void add_job(SetOptions& set) {
  set.add("env", &RunOptions::env);
  set.add("workdir", &RunOptions::workdir);
  set.add("run_dir", &RunOptions::run_dir);
  set.add("timeout", &RunOptions::timeout);
  set.add("max_restarts", &RunOptions::max_restarts);
  set.add("on_failure", &RunOptions::on_failure);
  set.add("stopped_timeout", &RunOptions::stopped_timeout);
  set.add("shutdown_timeout", &RunOptions::shutdown_timeout);
  set.add("signals_to_handle", &RunOptions::signals_to_handle);
}

void add_output(SetOptions& set) {
  set.add("dry_run", &RunOptions::dry_run);
  set.add("json", &RunOptions::json);
  set.add("quiet", &RunOptions::quiet);
  set.add("no_collapse", &RunOptions::no_collapse);
  set.add("trace", &RunOptions::trace);
  set.add("redirects", &RunOptions::redirects);
  set.add("tee", &RunOptions::tee);
  set.add("log_dir", &RunOptions::log_dir);
  set.add("local_ranks_filter", &RunOptions::local_ranks_filter);
  set.add("log_line_prefix_template", &RunOptions::log_line_prefix_template);
}

// A size of -1 is whatever it has to be.
bool is_mesh_of(const std::vector<MeshAxis>& asked, const MeshShape& told) {
  return std::ranges::equal(asked, told.axes, [](const MeshAxis& axis, const MeshAxis& is) {
    return axis.name == is.name && (axis.size == is.size || axis.size == -1);
  });
}

}  // namespace

Strings unused_options(const RunOptions& options, const RankEnv& env, const RankDevice& device) {
  SetOptions set(options);
  add_devices(options, env, set);
  const auto& shares = device.batch_shares;
  const int64_t batch = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  set.add("global_batch", options.global_batch != 0 && batch != 0 && options.global_batch != batch);
  const bool two_meshes = !options.mesh.empty() && !device.mesh.axes.empty();
  set.add("mesh", two_meshes && !is_mesh_of(options.mesh, device.mesh));
  add_job(set);
  add_output(set);
  Strings unused = set.names();
  for (const char* const variable : {"MUSTER_NPROC", "MUSTER_GPUS", "MUSTER_POLICY"}) {
    if (get_env(variable) && !get_env("MUSTER_TASK"))
      unused.emplace_back(variable);
  }
  return unused;
}

MeshShape mesh_of(const RunOptions& options, const RankDevice& device, int world_size) {
  if (!device.mesh.axes.empty() || options.mesh.empty())
    return device.mesh;
  return checked_mesh(options.mesh, world_size);
}

Int64s batch_shares_of(const RunOptions& options, const RankDevice& device, int world_size) {
  if (!device.batch_shares.empty() || options.global_batch == 0)
    return device.batch_shares;
  return batch_shares(options.global_batch, Doubles(world_size, 1.0));
}

}  // namespace muster
