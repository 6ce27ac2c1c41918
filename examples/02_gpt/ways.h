// Which way of sharing the training over the ranks the command line asks for. Each is a file in
// ways/.
#pragma once

#include <memory>

#include "ways/data_parallel.h"
#include "ways/fully_sharded.h"
#include "ways/local_sgd.h"
#include "ways/pipeline.h"
#include "ways/sharded_optimizer.h"
#include "ways/tensor_parallel.h"

// `net` lies in host memory. Collective: yes.
inline std::unique_ptr<Way> make_way(const Gpt& net, const Options& options, muster::Context& ctx) {
  if (options.divides_model()) {
    const auto mesh = ctx.mesh({{"dp", options.dp}, {"pp", options.pp}, {"tp", options.tp}});
    if (options.pp > 1)
      return std::make_unique<PipelineParallel>(net, options, ctx, mesh);
    return std::make_unique<TensorParallel>(net, options, ctx, mesh);
  }
  if (options.local_sgd > 0)
    return std::make_unique<LocalSteps>(net, options, ctx);
  if (options.shard == "full")
    return std::make_unique<FullyShardedModel>(net, options, ctx);
  if (options.shard != "none")
    return std::make_unique<ShardedState>(net, options, ctx);
  return std::make_unique<DataParallel>(net, options, ctx);
}
