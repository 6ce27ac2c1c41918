// Most options are for the launcher, and under another one nobody reads them. Two are the
// training's own, so that a program computes the same wherever it runs: the mesh and the global
// batch.
#include "muster/run/launcher_wins.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/batch_shares.h"

namespace muster {

namespace {

// Gathers the names of options that differ from what they are by default.
class SetOptions {
 public:
  void add(const char* name, bool is_set) {
    if (is_set)
      names_.push_back(cat("RunOptions::", name));
  }
  Strings names() { return std::move(names_); }

 private:
  Strings names_;
};

// The ranks' number may be what the program asked for.
bool asks_for_other_ranks(const RunOptions& options, const RankEnv& env) {
  const auto& asked = options.nproc_per_node;
  return asked && asked != env.local_world_size && asked != env.world_size;
}

void add_devices(const RunOptions& options, const RankEnv& env, SetOptions& set) {
  const RunOptions none;
  set.add("nproc_per_node", asks_for_other_ranks(options, env));
  set.add("cpu_only", options.cpu_only);
  set.add("gpu_only", options.gpu_only);
  set.add("gpus", !options.gpus.empty());
  set.add("gpus_per_rank", options.gpus_per_rank != none.gpus_per_rank);
  set.add("policy", !options.policy.empty());
  set.add("map", !options.map.empty());
  set.add("choose", options.choose != nullptr);
  set.add("scores", !options.scores.empty());
  set.add("rank_memory", !options.rank_memory.empty());
  // A launcher with a plan has assigned each rank its device.
  set.add("surplus", options.surplus != none.surplus && !env.plan.empty());
  set.add("visibility", options.visibility != none.visibility);
  set.add("numa_binding", options.numa_binding != none.numa_binding);
  set.add("cpu_slots", options.cpu_slots != none.cpu_slots);
  set.add("inventory", !options.inventory.empty());
  set.add("plan", !options.plan.empty());
  set.add("wait", options.wait.has_value());
  set.add("no_lease", options.no_lease);
  set.add("no_gpu_check", options.no_gpu_check);
}

void add_job(const RunOptions& options, SetOptions& set) {
  const RunOptions none;
  set.add("env", !options.env.empty());
  set.add("workdir", !options.workdir.empty());
  set.add("run_dir", !options.run_dir.empty());
  set.add("timeout", !options.timeout.empty());
  set.add("max_restarts", options.max_restarts.has_value());
  set.add("on_failure", options.on_failure != none.on_failure);
  set.add("stopped_timeout", options.stopped_timeout.has_value());
  set.add("shutdown_timeout", options.shutdown_timeout != none.shutdown_timeout);
  set.add("signals_to_handle", options.signals_to_handle != none.signals_to_handle);
}

void add_output(const RunOptions& options, SetOptions& set) {
  const RunOptions none;
  set.add("dry_run", options.dry_run);
  set.add("json", options.json);
  set.add("quiet", options.quiet);
  set.add("no_collapse", options.no_collapse);
  set.add("trace", !options.trace.empty());
  set.add("redirects", options.redirects != none.redirects);
  set.add("tee", options.tee != none.tee);
  set.add("log_dir", !options.log_dir.empty());
  set.add("local_ranks_filter", !options.local_ranks_filter.empty());
  set.add("log_line_prefix_template", !options.log_line_prefix_template.empty());
}

// A size of -1 is whatever it has to be.
bool is_mesh_of(const std::vector<MeshAxis>& asked, const MeshShape& told) {
  return std::ranges::equal(asked, told.axes, [](const MeshAxis& axis, const MeshAxis& is) {
    return axis.name == is.name && (axis.size == is.size || axis.size == -1);
  });
}

}  // namespace

Strings unused_options(const RunOptions& options, const RankEnv& env, const RankDevice& device) {
  SetOptions set;
  add_devices(options, env, set);
  const auto& shares = device.batch_shares;
  const int64_t batch = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  set.add("global_batch", options.global_batch != 0 && batch != 0 && options.global_batch != batch);
  const bool two_meshes = !options.mesh.empty() && !device.mesh.axes.empty();
  set.add("mesh", two_meshes && !is_mesh_of(options.mesh, device.mesh));
  add_job(options, set);
  add_output(options, set);
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

std::vector<int64_t> batch_shares_of(const RunOptions& options,
                                     const RankDevice& device,
                                     int world_size) {
  if (!device.batch_shares.empty() || options.global_batch == 0)
    return device.batch_shares;
  return batch_shares(options.global_batch, std::vector<double>(world_size, 1.0));
}

}  // namespace muster
