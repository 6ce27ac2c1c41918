// What a rank makes of RunOptions under a launcher, whose flags win. For run.cc.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/mesh_shape.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/run/rank_device.h"
#include "muster/run/run_options.h"

namespace muster {

// The options that are set and not used, since that launcher has decided what they say: their names
// as users write them.
Strings unused_options(const RunOptions& options, const RankEnv& env, const RankDevice& device);

// The grid of the ranks: the launcher's, or else that of the options for `world_size` ranks.
// Throws: invalid_argument for options that do not fit.
MeshShape mesh_of(const RunOptions& options, const RankDevice& device, int world_size);

// Each rank's samples of a global batch: the launcher's, or else equal ones. Empty: there is none.
// Throws: invalid_argument for more ranks than samples.
Int64s batch_shares_of(const RunOptions& options, const RankDevice& device, int world_size);

}  // namespace muster
