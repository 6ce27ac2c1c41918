// Which flags of the command line go together. What does not is refused before anything is started.
#pragma once

#include <muster/base/env.h>
#include <muster/base/error.h>
#include <muster/base/mesh_shape.h>
#include <muster/base/rank_env.h>
#include <muster/base/strings.h>

#include <CLI/CLI.hpp>
#include <string>

#include "options.h"

// Throws: CLI::ValidationError.
template <class Got>
[[noreturn]] void refuse(const std::string& flag,
                         const std::string& expected,
                         const Got& got,
                         const std::string& next) {
  throw CLI::ValidationError(muster::cat(flag, ": expected ", expected, ", got ", got, "; ", next));
}

// Those that this process is one of, or is told to start; 0: not known yet.
inline int known_ranks() {
  if (const auto env = muster::rank_env_from_environment())
    return env->world_size;
  return static_cast<int>(muster::get_env_int("MUSTER_NPROC").value_or(0));
}

// --mesh, as ranks along dp, pp and tp.
inline void read_mesh(Options& o) {
  if (o.mesh.empty())
    return;
  try {
    for (const muster::MeshAxis& axis : muster::parse_mesh(o.mesh, known_ranks()).axes) {
      int* const size = axis.name == "dp"   ? &o.dp
                        : axis.name == "pp" ? &o.pp
                        : axis.name == "tp" ? &o.tp
                                            : nullptr;
      if (size == nullptr)
        refuse("--mesh", "axes out of dp, pp and tp", axis.name, "rename it");
      *size = axis.size;
    }
  } catch (const muster::Error& error) {
    throw CLI::ValidationError(muster::cat("--", error.message()));
  }
}

inline void check_ways(const Options& o) {
  const std::string whole_model = "no --mesh with pp or tp beside it";
  if (o.shard != "none" && o.local_sgd > 0)
    refuse("--local-sgd",
           "no --shard beside it",
           "--shard " + o.shard,
           "ranks that train alone need all of the optimizer's state: leave one out");
  if (o.shard != "none" && o.divides_model())
    refuse("--shard",
           whole_model,
           "--mesh " + o.mesh,
           "parts of a model are not sharded here: leave one out");
  if (o.local_sgd > 0 && o.divides_model())
    refuse("--local-sgd",
           whole_model,
           "--mesh " + o.mesh,
           "ranks that train alone need the model: leave one out");
}

// What tensor parallelism divides.
inline void check_divided(const Options& o) {
  const std::string ranks = muster::cat("the ", o.tp, " ranks of tp");
  if (o.model.heads % o.tp != 0)
    refuse("--heads",
           muster::cat("a number that ", ranks, " divide"),
           o.model.heads,
           "change one of them");
  if (o.sequence && o.tp == 1)
    refuse("--sequence",
           "a --mesh with tp beside it",
           o.mesh.empty() ? "none" : o.mesh,
           "add --mesh tp=2");
  if (o.sequence && o.model.context % o.tp != 0)
    refuse("--context",
           muster::cat("a length that ", ranks, " divide with --sequence"),
           o.model.context,
           "change one of them");
}

inline void check_pipeline(const Options& o) {
  const int stages = o.pp * o.stages_per_rank();
  if (o.model.layers % stages != 0)
    refuse("--layers",
           muster::cat("a number that the pipeline's ", stages, " stages divide"),
           o.model.layers,
           "change it, or pp of --mesh");
  if (o.batch % o.micro_batches != 0)
    refuse("--micro-batches",
           muster::cat("a number that divides the batch of ", o.batch),
           o.micro_batches,
           "change one of them");
  if (o.pipeline_schedule == "interleaved" && o.micro_batches % o.pp != 0)
    refuse("--micro-batches",
           muster::cat("a number that ", o.pp, " ranks divide, for interleaved"),
           o.micro_batches,
           "change it, or --pipeline-schedule");
}
